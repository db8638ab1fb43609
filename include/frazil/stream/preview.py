"""Reads the newest records of a stream's topics, and shows each record's row or error. Writes nothing."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pyiceberg.schema import Schema

from frazil.commit.open_streams import open_kafka
from frazil.ingest.changes import CHANGE, change_schema, delete_mask
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import Destinations, OffsetRange, StageContext, TargetTable
from frazil.ingest.decode import bisect_failures
from frazil.ingest.destinations import MAIN, RowDivider
from frazil.ingest.readers import create_kafka_reader
from frazil.ingest.sensitive import Protector, to_safe_error
from frazil.ingest.shaper import RecordDecoder, Shaper
from frazil.ingest.stage import UNWRITABLE
from frazil.ingest.target_decoders import open_decoder
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_kafka_properties
from frazil.spec.route import Route, find_refusal
from frazil.stream.stage_context import build_declared_context, change_rules

PreviewOutcome = Literal["row", "change", "delete", "dropped", "dead letter", "no change"]
"""A `change` inserts or updates a row of an upsert stream, unless it is older than the row. The row is not read."""


@dataclass(frozen=True, slots=True)
class PreviewedRecord:
    topic: str
    partition: int
    offset: int
    outcome: PreviewOutcome
    rows: tuple[dict[str, Any], ...] = ()
    tables: tuple[str, ...] = ()
    """The table of each row, if the stream has a route."""
    error: str = ""


class _RouteTables(dict[str, str]):
    """The table of each route value, including tables that a template would create."""

    def __init__(self, route: Route) -> None:
        super().__init__(route.tables)
        self._route = route

    def __contains__(self, value: object) -> bool:
        template = self._route.template is not None
        return super().__contains__(value) or (template and find_refusal(str(value), self._route.allow) is None)

    def __missing__(self, value: str) -> str:
        return self._route.derive_table_name(value)


def preview(spec: StreamSpec, *, limit: int) -> list[PreviewedRecord]:
    """Preview the newest `limit` records, sorted by topic, partition and offset. Raises SpecError and Kafka errors."""
    context, schema = _build_context(spec)
    ranges = _newest_ranges(spec, limit)
    if not ranges:
        return []
    protect = Protector(context) if context.sensitive else None
    decode = RecordDecoder(context, schema, open_decoder(context, schema))
    shape = Shaper(context, schema, ranges, decode=decode, protect=protect, keeps_json=True)
    divide = None
    if spec.route:  # the tables that the template has created are unknown here, so its limit is not checked
        quote = (lambda _: "its value") if protect else repr
        destinations = dataclasses.replace(Destinations.of(spec.route, {}), targets=_RouteTables(spec.route))
        divide = RowDivider(destinations, ranges, quote=quote)
    records: list[PreviewedRecord] = []
    with create_kafka_reader(resolve_kafka_properties(spec, os.environ), ranges, stream=spec.name) as reader:
        chunks = [*reader]  # a transform's memory limit may abort a process that still reads
    for chunk in chunks:

        def attempt(start: int, end: int, chunk: RecordChunk = chunk) -> list[PreviewedRecord]:
            return [*_preview_chunk(chunk.slice(start, end), shape, ranges, protect, divide)]

        for start, _, result in bisect_failures(len(chunk), attempt):
            if isinstance(result, Exception):
                of, cause = ranges[chunk.range_index[start]], to_safe_error(result, context)
                error = f"{UNWRITABLE}: {type(cause).__name__}: {cause}"
                where = (of.topic, of.partition, int(chunk.offsets[start]))
                records.append(PreviewedRecord(*where, "dead letter", error=error))
            else:
                records += result
    targets = {MAIN: spec.table.identifier}
    records = [
        dataclasses.replace(preview, tables=tuple(targets.get(name, name) for name in preview.tables))
        for preview in records
    ]
    return sorted(records, key=lambda preview: (preview.topic, preview.partition, preview.offset))[:limit]


def _build_context(spec: StreamSpec) -> tuple[StageContext, Schema]:
    schema = iceberg.table_schema(spec)
    changes = change_rules(spec, schema, {})
    columns = schema if changes is None else change_schema(schema, changes.key)
    partitioning = iceberg.partition_spec(spec, schema).model_dump_json()
    targets = {"main": TargetTable(columns.model_dump_json(), partitioning, "", {}, "", 0)}
    return build_declared_context(spec, schema, {}, targets=targets, units=spec.units), columns


def _newest_ranges(spec: StreamSpec, limit: int) -> list[OffsetRange]:
    with open_kafka(spec) as kafka:
        partitions = kafka.describe().partitions
        first, ends = kafka.earliest(partitions), kafka.log_ends(partitions)
    spans = {tp: (first[tp], ends[tp].stable) for tp in partitions if tp in ends and first[tp] < ends[tp].stable}
    ranges = []
    smallest_first = sorted(spans.items(), key=lambda item: item[1][1] - item[1][0])
    for ranges_left, (tp, (start, end)) in zip(range(len(spans), 0, -1), smallest_first, strict=True):
        ranges.append(OffsetRange(*tp, max(start, end - -(-limit // ranges_left)), end))
        limit -= ranges[-1].end - ranges[-1].start
    return sorted((span for span in ranges if span.start < span.end), key=lambda span: (span.topic, span.partition))


def _preview_chunk(
    chunk: RecordChunk, shape: Shaper, ranges: list[OffsetRange], protect: Protector | None, divide: RowDivider | None
) -> Iterator[PreviewedRecord]:
    shaped = shape(chunk)
    if protect:
        shaped = dataclasses.replace(shaped, rejections=protect.mask_errors(shaped.rejections))
    dropped, decoded, tables = set(shaped.dropped.tolist()), shaped, list[str]()
    if divide:
        divided = divide(chunk, shaped)
        decoded, tables = divided.decoded, [divided.targets[code] for code in divided.codes.tolist()]
    errors = {r.index: f"{r.error_class}: {r.error}" for r in decoded.rejections}
    rows, tables_of = defaultdict[int, list[dict[str, Any]]](list), defaultdict[int, list[str]](list)
    columns = [name for name in decoded.rows.column_names if not name.startswith(("kafka_", "_frazil"))]
    of_rows, deletes = decoded.record_indexes, delete_mask(decoded.rows)
    for number, (index, row) in enumerate(zip(of_rows.tolist(), decoded.rows.select(columns).to_pylist(), strict=True)):
        rows[index].append(row)
        tables_of[index] += tables[number : number + 1]
    deleted = {*of_rows[deletes].tolist()} - {*of_rows[~deletes].tolist()}  # a new key is a delete and a row
    landed: PreviewOutcome = "change" if CHANGE in decoded.rows.column_names else "row"
    for index in range(len(chunk)):
        of, offset = ranges[chunk.range_index[index]], int(chunk.offsets[index])
        outcome: PreviewOutcome = "dropped" if index in dropped else "no change"
        if index in errors:
            rows[index], tables_of[index], outcome = [], [], "dead letter"
        elif index in rows:
            outcome = "delete" if index in deleted else landed
        where = (of.topic, of.partition, offset)
        yield PreviewedRecord(*where, outcome, tuple(rows[index]), tuple(tables_of[index]), errors.get(index, ""))
