"""What the audit compares: claims, rows, dead letters and Kafka's own offsets, by topic-partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyroaring import BitMap64

from frazil.audit.claims import Claims
from frazil.audit.compare import Evidence, InKafka
from frazil.commit.marker import Marker
from frazil.offsets.spans import TopicPartition
from frazil.offsets.tally import OffsetTally, Tallies


def gather(  # noqa: PLR0913 - what is known, and of what
    marker: Marker,
    claimed: Claims,
    *,
    rows: Tallies,
    dead_letters: Tallies,
    kafka: Mapping[TopicPartition, InKafka],
    whole: bool = True,
    drops_repeats: bool = False,
    tables: str = "the table",
) -> tuple[Evidence, ...]:
    """One piece of evidence for every topic-partition that is known, or that a period claims."""
    known = claimed.ranges.keys() | (marker.offsets.keys() | rows.keys() if whole else set())
    return tuple(
        Evidence(
            topic=tp[0],
            partition=tp[1],
            marker=marker.offsets.get(tp, 0),
            topic_id=marker.source.topic_ids.get(tp[0], ""),
            ranges=claimed.ranges.get(tp, ()),
            rows=rows.get(tp) or OffsetTally(),
            dead_letters=dead_letters.get(tp) or OffsetTally(),
            kafka=kafka.get(tp),
            whole=whole,
            rewritten=marker.rewritten.get(tp, ()),
            given_up=marker.given_up.get(tp, ()),
            replayed=claimed.replayed.get(tp) or BitMap64(),
            tables=tables,
            drops_repeats=drops_repeats,
        )
        for tp in sorted(known)
    )


def explained(evidence: tuple[Evidence, ...], every: Claims, mine: Claims) -> tuple[Evidence, ...]:
    """The evidence of a period, whose claims are `mine`, with what was committed and replayed at any time."""
    elsewhere, replayed = every.without(mine), every.replayed
    return tuple(
        replace(e, elsewhere=elsewhere.get(tp, ()), replayed=replayed.get(tp) or BitMap64())
        for e in evidence
        for tp in [(e.topic, e.partition)]
    )
