"""Kafka as the audit's independent witness: what it still has of the ranges that commit records claim."""

from __future__ import annotations

import os
from collections.abc import Mapping

from frazil.commit.audit import Finding, InKafka, Kind
from frazil.commit.claims import Claims
from frazil.commit.marker import Marker
from frazil.ingest.contract import TopicPartition
from frazil.spec.model import StreamSpec
from frazil.spec.references import kafka_properties
from frazil.stream.opened import open_kafka
from frazil.stream.source_offsets import read_offsets


def ask_kafka(
    spec: StreamSpec, marker: Marker, claimed: Claims
) -> tuple[Mapping[TopicPartition, InKafka], tuple[Finding, ...]]:
    """What Kafka has of each claimed range, where it still is the Kafka that the marker knows."""
    with open_kafka(spec) as kafka:
        found = kafka.describe()
        first = kafka.earliest(found.partitions)
    known, now = marker.source, found.identity
    notes = []
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for tp in sorted(claimed.ranges):
        topic_id = known.topic_ids.get(tp[0])
        if known.cluster_id != now.cluster_id or topic_id != now.topic_ids.get(tp[0]):
            sentence = "the topic is not (any more) the one that was read: nothing is checked against Kafka"
            notes.append(Finding(Kind.UNCHECKED, 1, sentence, f"{tp[0]}-{tp[1]}"))
            continue
        current = [r for r in claimed.ranges[tp] if r.topic_id == topic_id]
        begin = min((r.start for r in current), default=0)
        ranges[tp] = (max(first.get(tp, begin), begin), max((r.end for r in current), default=0))
    tallies = read_offsets(kafka_properties(spec, os.environ), ranges)
    return {tp: InKafka(first.get(tp, 0), tallies[tp].seen) for tp in ranges}, tuple(notes)
