"""Finds the offsets that Kafka still has: the audit's independent source."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

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


def find_remaining_offsets(
    spec: StreamSpec,
    marker: Marker,
    claimed: Claims,
    *,
    report_uncommitted: bool = True,
    dropped: Callable[[Mapping[TopicPartition, Span]], OffsetSets] = lambda _: {},
) -> tuple[Mapping[TopicPartition, RemainingOffsets], tuple[Finding, ...]]:
    """Return the claimed offsets that Kafka still has, and findings about topics that cannot be compared."""
    with open_kafka(spec) as kafka:
        topics = kafka.describe()
        first, ends = kafka.earliest(topics.partitions_with_leader), kafka.log_ends(topics.partitions_with_leader)
        notes = []
        ranges: dict[TopicPartition, Span] = {}
        current = claimed.of_topics(marker.source.topic_ids)
        for tp in sorted(claimed.ranges):
            sentence = explain_not_comparable(tp[0], marker.source, topics.identity, spec)
            if sentence or tp in topics.leaderless:
                offsets = len(claimed_offsets(claimed.ranges[tp]))
                notes.append(Finding(FindingKind.NOT_COMPARED, offsets, sentence or NO_LEADER, f"{tp[0]}-{tp[1]}"))
                continue
            begin = min((r.start for r in current[tp]), default=0)
            end = max((r.end for r in current[tp]), default=0)
            # A truncated log may end before the committed end. Waiting for records after its end would never succeed.
            ranges[tp] = (max(first.get(tp, begin), begin), min(end, ends[tp].stable if tp in ends else end))
        truncated = find_truncated_logs(kafka, marker, {tp: current[tp] for tp in ranges if tp in ends})
    if report_uncommitted:
        log_ends = {tp: end for tp, end in ends.items() if tp not in truncated}
        notes += report_not_committed(spec, marker, topics.identity, first, log_ends)
    tallies = read_offsets(resolve_kafka_properties(spec, os.environ), ranges)
    by_transform = dropped(ranges)
    in_kafka = {
        tp: RemainingOffsets(first.get(tp, 0), tallies[tp].seen, truncated.get(tp), by_transform.get(tp, BitMap64()))
        for tp in ranges
    }
    return in_kafka, tuple(notes)


def report_not_committed(
    spec: StreamSpec, marker: Marker, now: SourceIdentity, first: Offsets, ends: Mapping[TopicPartition, LogEnd]
) -> Iterator[Finding]:
    """Report the records after the stream's position. They are not compared."""
    read = {tp: end.stable for tp, end in ends.items() if not explain_not_comparable(tp[0], marker.source, now, spec)}
    position = {tp: max(offset, first.get(tp, 0)) for tp, offset in marker.offsets.items()}
    if unread := count_unread(position, first, read):
        sentence = f"{format_count(unread, 'record', 'is|are')} not committed yet"
        yield Finding(FindingKind.NOT_COMMITTED, unread, sentence, spec.name)


def explain_not_comparable(topic: str, read: SourceIdentity, now: SourceIdentity, spec: StreamSpec) -> str | None:
    """Return why a Kafka topic cannot be compared with committed records; None if it can."""
    if topic not in spec.source.reads:
        return "the stream no longer reads the topic: nothing is compared with Kafka"
    if read.cluster_id == now.cluster_id and read.topic_ids.get(topic) == now.topic_ids.get(topic):
        return None
    return "the topic was recreated or is in another cluster: nothing is compared with Kafka"


def find_truncated_logs(
    kafka: KafkaAdmin, marker: Marker, ranges: Mapping[TopicPartition, Sequence[CommittedRange]]
) -> dict[TopicPartition, int]:
    """Return the lowest offset at which each log lost records. Omits accepted truncations."""
    position = {tp: marker.offsets[tp] for tp in ranges if tp in marker.offsets}
    found = dict(find_truncations(kafka, position, marker.leader_epochs))
    reached = defaultdict[TopicPartition, Counter[int]](Counter)
    for tp, parts in ranges.items():
        for r in parts:
            if r.leader_epoch is not None:
                reached[tp][r.leader_epoch] = max(r.end, reached[tp][r.leader_epoch])
    left = {tp: sorted(ends.items()) for tp, ends in reached.items()}
    while left:
        requested = {tp: (end, epoch) for tp, ends in left.items() for epoch, end in ends[:1]}
        for tp, at in kafka.truncation_offsets(requested).items():
            if not any(start <= at and requested[tp][0] <= end for start, end in marker.rewritten.get(tp, ())):
                found[tp] = min(at, found.get(tp, at))
        left = {tp: ends[1:] for tp, ends in left.items() if ends[1:]}
    return found
