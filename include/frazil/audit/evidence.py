"""The evidence that the audit compares, by topic-partition: claims, rows, dead letters and Kafka's offsets."""

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
    """Return the evidence for each topic-partition that is known, or that a period claims."""
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
    """Return a period's evidence with all other claims and replays; `mine` are the claims of the period."""
    elsewhere, replayed = every.without(mine), every.replayed
    return tuple(
        replace(e, elsewhere=elsewhere.get(tp, ()), replayed=replayed.get(tp) or BitMap64())
        for e in evidence
        for tp in [(e.topic, e.partition)]
    )
