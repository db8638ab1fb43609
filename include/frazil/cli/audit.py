"""`frazil audit`: whether a stream's records are in its table exactly once, held against all that can tell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from pyiceberg.table import Table

from frazil.cli.options import json_option, streams_option
from frazil.cli.output import echo_json, echo_table
from frazil.cli.source_offsets import read_offsets
from frazil.cli.stream_tables import OpenStream, open_kafka, open_stream
from frazil.commit.audit import Evidence, Finding, InKafka, Kind, compare, compare_counts, duplicates, missing
from frazil.commit.evidence import Claims, claims, gather, has_coordinates, tally_dead_letters, tally_rows
from frazil.commit.marker import PROPERTY_PREFIX, Marker, read_marker
from frazil.commit.reset import is_rolled_back
from frazil.errors import AdoptionRequired
from frazil.ingest.contract import TopicPartition
from frazil.spec.load import find_stream
from frazil.spec.references import kafka_properties


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """One topic-partition in numbers; offsets `[start, end)` are committed."""

    topic: str
    partition: int
    start: int | None
    """None where no batch was committed."""
    end: int
    rows: int
    distinct: int
    duplicates: int
    gaps: int | None
    """Records that Kafka has and no table does; None where Kafka was not asked."""
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Audit:
    stream: str
    clean: bool
    partitions: tuple[PartitionAudit, ...]
    findings: tuple[Finding, ...]


@click.command()
@click.argument("stream")
@streams_option
@json_option
@click.option("--no-source", is_flag=True, help="Do not read Kafka: tables and commit records alone.")
def audit(stream: str, streams_folder: Path, as_json: bool, no_source: bool) -> None:
    """Check that every record of STREAM's committed range landed exactly once.

    Reads the Kafka coordinates of both tables, the commit records and, unless --no-source, the records that Kafka
    still has. What retention deleted is checked against the records alone, and said. A writer may run meanwhile.
    Exits with 0 when all is well, and with 1, a sentence each, when anything is off.

    \b
    Example:
      frazil audit flights
    """
    spec = find_stream(streams_folder, stream)
    result = audit_stream(open_stream(spec), with_source=not no_source)
    if as_json:
        echo_json(result)
    else:
        _show(result)
    if not result.clean:
        raise SystemExit(1)


def audit_stream(opened: OpenStream, *, with_source: bool) -> Audit:
    """Read all evidence and compare it. Raises AdoptionRequired without a marker, KafkaUnavailable, MarkerUnreadable.

    The main table is read first, at one snapshot; its dead letters and commit records are there before it moves.
    """
    spec = opened.spec
    table = opened.tables.main.refresh()
    marker = read_marker(table.properties, spec.name)
    if marker is None:
        raise AdoptionRequired(
            f"stream {spec.name!r} has no marker in table {spec.table.identifier}: nothing is committed yet. "
            f"`frazil run {spec.name}` starts it"
        )
    claimed = claims(opened.tables.journals, marker)
    back = _rolled_back(table, marker, stream=spec.name)
    if not (spec.coordinates and has_coordinates(table)):
        findings = (*back, *_without_coordinates(table, claimed, stream=spec.name))
        return _result(spec.name, (), findings)
    topics = {topic for topic, _ in marker.offsets} | {topic for topic, _ in claimed.ranges}
    kafka, notes = _ask_kafka(opened, marker, claimed) if with_source else ({}, ())
    evidence = gather(
        marker,
        claimed,
        rows=tally_rows(table, topics),
        dead_letters=tally_dead_letters(
            opened.tables.dead_letters.refresh(), topics, topic_ids=marker.source.topic_ids
        ),
        kafka=kafka,
    )
    return _result(spec.name, evidence, (*back, *notes, *(f for e in evidence for f in compare(e))))


def _result(stream: str, evidence: tuple[Evidence, ...], findings: tuple[Finding, ...]) -> Audit:
    partitions = tuple(_numbers(e) for e in evidence)
    return Audit(stream, not any(f.kind.is_wrong for f in findings), partitions, findings)


def _numbers(e: Evidence) -> PartitionAudit:
    return PartitionAudit(
        topic=e.topic,
        partition=e.partition,
        start=min((r.start for r in e.ranges), default=None),
        end=e.marker,
        rows=e.rows.rows,
        distinct=len(e.rows.seen),
        duplicates=duplicates(e),
        gaps=len(missing(e)) if e.kafka is not None else None,
        dead_letters=len(e.dead_letters.seen),
    )


def _rolled_back(table: Table, marker: Marker, *, stream: str) -> tuple[Finding, ...]:
    if not is_rolled_back(table, marker, name=".".join(table.name())):
        return ()
    sentence = f"the table was rolled back behind the marker; `frazil reset {stream} --to table` re-reads what is gone"
    return (Finding(Kind.ROLLED_BACK, 1, sentence, stream),)


def _without_coordinates(table: Table, claimed: Claims, *, stream: str) -> tuple[Finding, ...]:
    """By counts alone, which says little where others write to the table as well."""
    others = [n for n in table.properties if n.startswith(PROPERTY_PREFIX) and n != PROPERTY_PREFIX + stream]
    return compare_counts(
        rows=table.scan().count() if table.current_snapshot() else 0,
        claimed=claimed.records,
        other_streams=len(others),
        stream=stream,
    )


def _ask_kafka(
    opened: OpenStream, marker: Marker, claimed: Claims
) -> tuple[Mapping[TopicPartition, InKafka], tuple[Finding, ...]]:
    """What Kafka has of each committed range, where it still is the Kafka that the marker knows."""
    with open_kafka(opened.spec) as kafka:
        found = kafka.describe()
        first = kafka.earliest(found.partitions)
    known, now = marker.source, found.identity
    notes = []
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for tp, end in marker.offsets.items():
        if known.cluster_id != now.cluster_id or known.topic_ids.get(tp[0]) != now.topic_ids.get(tp[0]):
            sentence = "the topic is not (any more) the one that was read: nothing is checked against Kafka"
            notes.append(Finding(Kind.UNCHECKED, 1, sentence, f"{tp[0]}-{tp[1]}"))
            continue
        begin = min((r.start for r in claimed.ranges.get(tp, ()) if r.topic_id == known.topic_ids[tp[0]]), default=end)
        ranges[tp] = (max(first.get(tp, begin), begin), end)
    tallies = read_offsets(kafka_properties(opened.spec, os.environ), ranges)
    return {tp: InKafka(first[tp], tallies[tp].seen) for tp in ranges}, tuple(notes)


def _show(result: Audit) -> None:
    columns = ("topic-partition", "committed", "rows", "distinct", "duplicates", "gaps", "dead letters")
    rows = [
        (
            f"{p.topic}-{p.partition}",
            "nothing" if p.start is None else f"{p.start:,} to {p.end:,}",
            f"{p.rows:,}",
            f"{p.distinct:,}",
            f"{p.duplicates:,}",
            "not asked" if p.gaps is None else f"{p.gaps:,}",
            f"{p.dead_letters:,}",
        )
        for p in result.partitions
    ]
    if rows:
        echo_table(columns, rows, numbers=frozenset(columns[1:]))
    for finding in result.findings:
        click.echo(f"{'OFF ' if finding.kind.is_wrong else 'note'}  {finding.where}: {finding.sentence}")
    rows_in_all = sum(p.rows for p in result.partitions)
    if result.clean and result.partitions:
        click.echo(f"Stream {result.stream} is clean: {rows_in_all:,} rows, each offset once.")
    elif result.clean:
        click.echo(f"Stream {result.stream}: nothing is off, as far as counts tell.")
    else:
        wrong = sum(f.kind.is_wrong for f in result.findings)
        click.echo(f"Stream {result.stream} is not clean: {wrong} findings.")
