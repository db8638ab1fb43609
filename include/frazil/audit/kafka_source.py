"""Finds the offsets that Kafka still has: the audit's independent source."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from frazil.audit.claims import Claims, CommittedRange, claimed_offsets
from frazil.audit.evidence import RemainingOffsets
from frazil.audit.findings import Finding, FindingKind
from frazil.commit.marker import Marker
from frazil.commit.open_streams import open_kafka
from frazil.kafka.admin import KafkaAdmin
from frazil.kafka.fetch import read_offsets
from frazil.kafka.logs import LogEnd, find_truncations
from frazil.offsets.spans import Offsets, OffsetSets, SourceIdentity, Span, TopicPartition, count_unread
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_kafka_properties
from frazil.spec.units import format_count

NO_LEADER = "no leader: nothing is compared with Kafka. Start a broker that has a replica"


@dataclass(frozen=True, slots=True)
class KafkaLogs:
    """The logs of a stream's topics in Kafka, compared with the stream's claims."""

    topics: SourceIdentity
    first: Offsets
    ends: Mapping[TopicPartition, LogEnd]
    not_comparable: Mapping[TopicPartition, str]
    """Why claimed partitions cannot be compared."""
    truncated: Mapping[TopicPartition, int]
    """The lowest offset at which each log lost records. Omits accepted truncations."""

    @classmethod
    def load(cls, spec: StreamSpec, marker: Marker, claimed: Claims) -> KafkaLogs:
        with open_kafka(spec) as kafka:
            topics = kafka.describe()
            first, ends = kafka.earliest(topics.partitions_with_leader), kafka.log_ends(topics.partitions_with_leader)
            leaderless = dict.fromkeys(topics.leaderless, NO_LEADER)
            reasons = {
                tp: _explain_not_comparable(tp[0], marker.source, topics.identity, spec) or leaderless.get(tp)
                for tp in sorted(claimed.ranges)
            }
            not_comparable = {tp: reason for tp, reason in reasons.items() if reason}
            current = claimed.of_topics(marker.source.topic_ids)
            compared = {tp: current[tp] for tp in reasons if tp in ends and tp not in not_comparable}
            return cls(topics.identity, first, ends, not_comparable, _find_truncated_logs(kafka, marker, compared))

    def report_not_committed(self, spec: StreamSpec, marker: Marker) -> Iterator[Finding]:
        """Report the records after the stream's position. They are not compared."""
        ends = {tp: end.stable for tp, end in self.ends.items() if tp not in self.truncated}
        comparable = {tp for tp in ends if not _explain_not_comparable(tp[0], marker.source, self.topics, spec)}
        position = {tp: max(offset, self.first.get(tp, 0)) for tp, offset in marker.offsets.items()}
        if unread := count_unread(position, self.first, {tp: ends[tp] for tp in comparable}):
            sentence = f"{format_count(unread, 'record', 'is|are')} not committed yet"
            yield Finding(FindingKind.NOT_COMMITTED, unread, sentence, spec.name)


def find_remaining_offsets(
    spec: StreamSpec,
    marker: Marker,
    claimed: Claims,
    *,
    report_uncommitted: bool = True,
    dropped: Callable[[Mapping[TopicPartition, Span]], OffsetSets] = lambda _: {},
) -> tuple[Mapping[TopicPartition, RemainingOffsets], tuple[Finding, ...]]:
    """Return the claimed offsets that Kafka still has, and findings about topics that cannot be compared."""
    logs, current = KafkaLogs.load(spec, marker, claimed), claimed.of_topics(marker.source.topic_ids)
    notes = [
        Finding(FindingKind.NOT_COMPARED, len(claimed_offsets(claimed.ranges[tp])), reason, f"{tp[0]}-{tp[1]}")
        for tp, reason in logs.not_comparable.items()
    ]
    if report_uncommitted:
        notes += logs.report_not_committed(spec, marker)
    ranges: dict[TopicPartition, Span] = {}
    for tp in sorted(current.keys() - logs.not_comparable.keys()):
        begin = min((r.start for r in current[tp]), default=0)
        end = max((r.end for r in current[tp]), default=0)
        # A truncated log may end before the committed end. Waiting for records after its end would never succeed.
        stable = logs.ends[tp].stable if tp in logs.ends else end
        ranges[tp] = (max(logs.first.get(tp, begin), begin), min(end, stable))
    tallies, by_transform = read_offsets(resolve_kafka_properties(spec, os.environ), ranges), dropped(ranges)
    in_kafka = {
        tp: RemainingOffsets(
            logs.first.get(tp, 0), tallies[tp].seen, logs.truncated.get(tp), by_transform.get(tp, BitMap64())
        )
        for tp in ranges
    }
    return in_kafka, tuple(notes)


def _explain_not_comparable(topic: str, read: SourceIdentity, now: SourceIdentity, spec: StreamSpec) -> str | None:
    """Return why a Kafka topic cannot be compared with committed records; None if it can."""
    if topic not in spec.source.reads:
        return "the stream no longer reads the topic: nothing is compared with Kafka"
    if read.cluster_id == now.cluster_id and read.topic_ids.get(topic) == now.topic_ids.get(topic):
        return None
    return "the topic was recreated or is in another cluster: nothing is compared with Kafka"


def _find_truncated_logs(
    kafka: KafkaAdmin, marker: Marker, ranges: Mapping[TopicPartition, Sequence[CommittedRange]]
) -> dict[TopicPartition, int]:
    position = {tp: marker.offsets[tp] for tp in ranges if tp in marker.offsets}
    truncations = dict(find_truncations(kafka, position, marker.leader_epochs))
    reached = defaultdict[TopicPartition, Counter[int]](Counter)
    for tp, parts in ranges.items():
        for r in parts:
            if r.leader_epoch is not None:
                reached[tp][r.leader_epoch] = max(r.end, reached[tp][r.leader_epoch])
    untried = {tp: sorted(ends.items()) for tp, ends in reached.items()}
    while untried:
        requested = {tp: (end, epoch) for tp, ends in untried.items() for epoch, end in ends[:1]}
        for tp, offset in kafka.truncation_offsets(requested).items():
            if not any(start <= offset and requested[tp][0] <= end for start, end in marker.rewritten.get(tp, ())):
                truncations[tp] = min(offset, truncations.get(tp, offset))
        untried = {tp: ends[1:] for tp, ends in untried.items() if ends[1:]}
    return truncations
