"""Writes the proposed declaration as YAML. Its comments show what each proposal is based on."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import yaml

from frazil.infer.columns import ProposedColumn, propose_columns, rank_event_times, rename_dotted
from frazil.infer.encoding import (
    ENVELOPE_KEYS,
    MIN_FORMAT_SHARE,
    Encoding,
    UpsertTable,
    derive_captured_table,
    derive_table_with_deletes,
    find_encoding,
    unwrap_event,
)
from frazil.infer.registered_schemas import RegisteredSchemas, derive_avro_columns, derive_json_columns
from frazil.infer.sample import MIN_VALUES_PER_MISFIT, Sample, collect_statistics, parse_text
from frazil.ingest.changes import change_schema
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.decode import DecodedChunk, Rejection
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.fields import units_of_fields
from frazil.ingest.key_header_columns import value_schema
from frazil.spec import iceberg
from frazil.spec.formats import AvroFormat, BytesFormat, CsvFormat, Envelope, JsonFormat, dump_format
from frazil.spec.load import validate_stream
from frazil.spec.units import format_count, format_rounded_bytes
from frazil.spec.upsert import TOMBSTONES

MIN_HOURLY_BYTES = 24 * 128 * 2**20
"""Minimum Parquet bytes per day for hourly partitions. With fewer bytes, their files would be too small."""
MIN_DAILY_BYTES = 2**20
"""Minimum Parquet bytes per day for daily partitions. With fewer bytes, monthly partitions are proposed."""
MAX_SORT_COLUMN_VALUES = 1_000
MAX_LISTED_ERRORS = 5
MAX_ERROR_CHARACTERS = 200
TARGET_FILE_BYTES = 512 * 2**20
KAFKA_TIMESTAMP_COLUMN = "kafka_timestamp"

_PLAIN = re.compile(r"[A-Za-z_]\w*")
_YAML_KEYWORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True, slots=True)
class StreamNames:
    name: str
    table: str
    bootstrap_servers: str | None = None


def propose_declaration(sample: Sample, names: StreamNames, written: RegisteredSchemas | None = None) -> str:
    """Return a declaration in YAML that `frazil validate` accepts. `written` has the topic's schemas.

    Raises RegistryUnavailable, and the SpecErrors of `find_encoding` and `derive_avro_columns`.
    """
    encoding = find_encoding(sample, written)
    if (rows := derive_captured_table(sample, encoding)) is not None:
        return _render([*_render_upsert(sample, encoding, names, rows)], sample, _describe_events(rows))
    encoding = _unwrap_records(encoding)
    columns = _add_rest(_propose_columns(sample, encoding, written), encoding)
    times = rank_event_times(columns)
    event_time = times[0].name if times else KAFKA_TIMESTAMP_COLUMN
    remarks = [*_describe_wrapping(encoding), *_describe_registry(sample.topic, written, columns)]
    if (rows := derive_table_with_deletes(sample, encoding, columns, event_time)) is not None:
        return _render([*_render_upsert(sample, encoding, names, rows)], sample, [*_describe_deletes(sample), *remarks])
    declared = [
        f"name: {names.name}",
        *_render_source(sample, encoding, names),
        f"table: {names.table}",
        "schema:",
        *map(_render_column, columns),
        *_render_event_time(times),
        *_render_layout(sample, columns, event_time),
        *_render_rest(columns),
    ]
    return _render(declared, sample, remarks)


def _add_rest(columns: tuple[ProposedColumn, ...], encoding: Encoding) -> tuple[ProposedColumn, ...]:
    if not isinstance(encoding.format, JsonFormat) or all(c.type and not c.is_partial for c in columns):
        return columns
    used = {column.name.lower() for column in columns}
    name = next(n for n in chain(["rest"], (f"rest_{i}" for i in count(2))) if n not in used)
    return (*columns, ProposedColumn(name, "string", is_rest=True))


def _render_rest(columns: Sequence[ProposedColumn]) -> Iterator[str]:
    yield from (f"rest: {c.name}    # keeps the fields that no column takes, as JSON" for c in columns if c.is_rest)


def _unwrap_records(encoding: Encoding) -> Encoding:
    """Return the payloads as records, if Kafka Connect wrapped most records in `{schema, payload}`."""
    if not isinstance(encoding.format, JsonFormat):
        return encoding
    inside = [payload for record in encoding.records if (payload := unwrap_event(record)) is not record]
    if not inside or len(inside) < MIN_FORMAT_SHARE * len(encoding.records):
        return encoding
    unwrapping = encoding.format.model_copy(update={"unwrap": "payload"})
    return Encoding(unwrapping, tuple(dict(payload) for payload in inside))


def _describe_wrapping(encoding: Encoding) -> Iterator[str]:
    if isinstance(encoding.format, JsonFormat) and encoding.format.unwrap:
        yield "# Kafka Connect wraps these records in {schema, payload}: unwrap takes the columns from payload."


def _render(declared: Sequence[str], sample: Sample, remarks: Iterable[str]) -> str:
    rejected = decode_sample(yaml.safe_load("\n".join(declared)), sample).rejections
    head = ["# yaml-language-server: $schema=stream.schema.json", *_render_head(sample, rejected, remarks)]
    return "\n".join([*head, *declared]) + "\n"


def _render_upsert(sample: Sample, encoding: Encoding, names: StreamNames, rows: UpsertTable) -> Iterator[str]:
    """Yield an unpartitioned declaration with `mode: upsert`. An updated time could move a row to another partition."""
    columns = _add_rest(rows.columns, encoding)
    if rows.metadata is not None:
        enveloped = encoding.format.model_copy(update={"envelope": Envelope(metadata=rows.metadata)})
        encoding = replace(encoding, format=enveloped)
    yield f"name: {names.name}"
    yield from _render_source(sample, encoding, names, of_upsert=rows)
    yield f"table: {names.table}"
    yield "schema:"
    yield from map(_render_column, columns)
    yield f"event-time: {rows.event_time or KAFKA_TIMESTAMP_COLUMN}"
    yield "mode: upsert"
    guess = "    # a guess: the record keys do not show it" if rows.is_guess else ""
    yield f"key: [{', '.join(map(_format_name, rows.key))}]{guess}"
    if rows.order_by:
        yield f"order-by: {rows.order_by}"
    if rows.metadata is None:
        yield f"delete: {TOMBSTONES}"
    if _is_plain(rows.key[0]):
        yield f"# partition-by: [bucket(16, {rows.key[0]})]    # a batch then reads only the partitions of its keys"
    yield from _render_rest(columns)


def _describe_deletes(sample: Sample) -> Iterator[str]:
    deletes = format_count(sum(record.is_tombstone for record in sample.records), "record", "has|have")
    yield f"# {deletes} a key and no value. With delete: tombstones, such a record deletes the row of its key."
    yield "# To keep every record as a row of its own, leave out mode, key and delete; records without a value are then"
    yield "# dead letters. With order-by, the change with the greatest value wins; without it, the last one in Kafka."


def _describe_events(rows: UpsertTable) -> Iterator[str]:
    yield "# These are Debezium's events. With mode: upsert and envelope: debezium, the table has the source's rows."
    yield '# See "Capture changes of a database". Declare dates and times as such, although they arrive as numbers.'
    if rows.order_by is None:
        yield "# Not all events have a position in the source's log, so the last event in Kafka wins."


def _propose_columns(
    sample: Sample, encoding: Encoding, written: RegisteredSchemas | None
) -> tuple[ProposedColumn, ...]:
    if isinstance(encoding.format, AvroFormat) and written is not None:
        return _add_units(derive_avro_columns(written.schemas), sample, encoding)
    if isinstance(encoding.format, BytesFormat):
        return (ProposedColumn("value", "binary"),)
    statistics = collect_statistics(encoding.records)
    has_json = not isinstance(encoding.format, CsvFormat)
    columns = propose_columns(statistics, timestamps_ms=sample.timestamps_ms, allows_dots=True, has_json=has_json)
    if written is not None and written.type == "JSON":
        columns = derive_json_columns(written.schemas, columns)
    elif isinstance(encoding.format, JsonFormat):
        relaxed = collect_statistics({name: parse_text(v) for name, v in record.items()} for record in encoding.records)
        cast = propose_columns(statistics, timestamps_ms=sample.timestamps_ms, relaxed=relaxed, allows_dots=True)
        columns = tuple(
            other if other.is_cast and _accepts_sample(other, sample, encoding) else column
            for column, other in zip(columns, cast, strict=True)
        )
    columns = rename_dotted(columns)
    if any(column.type for column in columns):
        return columns
    return (*columns, ProposedColumn("value", "string", remark="no field of the records can be a column"))


def _accepts_sample(column: ProposedColumn, sample: Sample, encoding: Encoding) -> bool:
    (renamed,) = rename_dotted([replace(column, remark="")])
    declared = _declare_sample(yaml.safe_load(_render_column(renamed)), sample, encoding)
    rejected = Counter(rejection.error_class for rejection in decode_sample(declared, sample).rejections)
    misfits = sum(rejected[name] for name in ("TypeMismatch", "OutOfRange", "MissingRequired"))
    return misfits * MIN_VALUES_PER_MISFIT < len(encoding.records)


def _declare_sample(schema: Mapping[str, Any], sample: Sample, encoding: Encoding) -> dict[str, Any]:
    return {
        "name": "sample",
        "source": {"topics": sample.topic, "format": dump_format(encoding.format)},
        "table": "sample.sample",
        "schema": schema,
        "event-time": KAFKA_TIMESTAMP_COLUMN,
    }


def _add_units(columns: tuple[ProposedColumn, ...], sample: Sample, encoding: Encoding) -> tuple[ProposedColumn, ...]:
    """Add facts about the sampled values: the units of times, and numbers of distinct values."""
    open_to = {c.name: c for c in columns if c.type in {"int", "long", "string"}}
    if not open_to:
        return columns
    declared = _declare_sample({name: c.type for name, c in open_to.items()}, sample, encoding)
    rows = decode_sample(declared, sample).rows.select(list(open_to)).to_pylist()
    by_name = {c.name: c for c in propose_columns(collect_statistics(rows), timestamps_ms=sample.timestamps_ms)}
    return tuple(_add_unit(c, by_name.get(c.name)) if c.name in open_to else c for c in columns)


def _add_unit(column: ProposedColumn, proposed: ProposedColumn | None) -> ProposedColumn:
    if proposed is None:
        return column
    if proposed.unit is None:
        return replace(column, distinct=proposed.distinct)
    return replace(
        column,
        type=proposed.type,
        unit=proposed.unit,
        remark=column.remark or proposed.remark,
        distance_s=proposed.distance_s,
    )


def _describe_registry(
    topic: str, written: RegisteredSchemas | None, columns: Sequence[ProposedColumn]
) -> Iterator[str]:
    if {column.name for column in columns} >= ENVELOPE_KEYS:
        yield (
            "# These look like Debezium's events. To get their rows, declare mode: upsert, format.envelope: debezium, "
            "a key, and the fields of `after` as columns:"
        )
        yield '# see "Capture changes of a database".'
    if written is not None:
        count_of = format_count(len(written.schemas), "schema")
        found_by = f"the subject {topic}-value, and the sample's schema ids"
        yield f"# The columns come from {count_of} ({written.type}) in the registry: {found_by}."
        if written.unknown:
            unknown = ", ".join(map(str, written.unknown[:8]))
            yield f"# The registry does not have these schema ids of the sample: {unknown}."


def _render_head(sample: Sample, rejected: Sequence[Rejection], remarks: Iterable[str]) -> Iterator[str]:
    sampled = len(sample.records)
    total = f"about {sample.records_in_topic:,} records of {sample.topic}"
    yield f"# Proposed by frazil infer from {sampled:,} of {total}. Edit it."
    yield from remarks
    if rejected:
        counts = Counter(rejection.error_class for rejection in rejected)
        reasons = ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
        yield f"# As declared below, {len(rejected):,} of these {sampled:,} would be dead letters: {reasons}."
        yield from _describe_rejections(rejected)
    yield from _describe_sizes(sample)


def _describe_rejections(rejected: Sequence[Rejection]) -> Iterator[str]:
    """Yield the first error of each error class and field, the most frequent first."""
    by_field: dict[tuple[str, str], list[str]] = {}
    for rejection in rejected:
        by_field.setdefault((rejection.error_class, rejection.error.partition(": ")[0]), []).append(rejection.error)
    for (name, _), errors in sorted(by_field.items(), key=lambda item: -len(item[1]))[:MAX_LISTED_ERRORS]:
        first = errors[0][:MAX_ERROR_CHARACTERS]
        yield f"#   {name} {len(errors):,}: {first if first.isprintable() else ascii(first)}"


def _describe_sizes(sample: Sample) -> Iterator[str]:
    rate = sample.records_per_day
    if rate is None:
        yield "# The daily volume is unknown: Kafka's timestamps span less than a minute."
        return
    size = rate * _average_value_bytes(sample)
    yield (
        f"# About {rate:,.0f} records a day, {format_rounded_bytes(size)} as sent. As Parquet, perhaps a quarter: "
        f"{format_rounded_bytes(size / 4)} a day,"
    )
    committed = min(1440, max(1, round(rate)))
    compacted = max(1, round(size / 4 / TARGET_FILE_BYTES))
    yield f"# in up to {committed:,} files a day if committed each minute, and about {compacted:,} after compaction."


def _average_value_bytes(sample: Sample) -> float:
    return sum(len(record.value or b"") for record in sample.records) / len(sample.records)


def _render_source(
    sample: Sample, encoding: Encoding, stream_names: StreamNames, *, of_upsert: UpsertTable | None = None
) -> Iterator[str]:
    yield "source:"
    if stream_names.bootstrap_servers:
        yield f"  bootstrap-servers: {_quote(stream_names.bootstrap_servers)}"
    yield f"  topics: [{_quote(sample.topic)}]"
    plain = dump_format(encoding.format)
    if isinstance(plain, dict):
        columns = plain.pop("columns", None)
        written = {**plain, **({"columns": columns} if columns else {})}
        yield f"  format: {json.dumps(written)}"
    else:
        yield f"  format: {plain}"
    keys = sum(record.key is not None for record in sample.records)
    if of_upsert is not None:
        yield from [f"  key: {json.dumps(key.model_dump(exclude_none=True))}" for key in [of_upsert.whole_key] if key]
    elif keys:
        share = f"{keys / len(sample.records):.0%} of the records have a key"
        yield f"  # key: {{column: …}}    # {share}; declare a string column for it"
    names = Counter(name for record in sample.records for name in set(record.headers))
    if names:
        header_names = ", ".join(name for name, _ in names.most_common(8))
        yield f"  # headers: [{{name: …, column: …}}]    # seen: {_quote(header_names)}"


def _render_column(column: ProposedColumn) -> str:
    name = _format_name(column.name)
    if column.type is None:  # its name may have characters that YAML forbids even in comments
        return f"  # {name if column.name.isprintable() else ascii(column.name)}: {column.remark}"
    declared = f"{column.type}{' not null' if column.required else ''}"
    if column.unit or column.as_json or column.json_fields or column.is_cast or column.path is not None:
        inner = [f"{_format_name(path)}: json" for path in column.json_fields]
        settings = {
            "type": column.type if re.fullmatch(r"\w+", column.type) else _quote(column.type),
            "required": column.required and "true",
            "as": "json" if column.as_json else column.json_fields and f"{{{', '.join(inner)}}}",
            "unit": column.unit,
            "cast": column.is_cast and "lenient",
            "from": column.path and "'" + column.path.replace("'", "''") + "'",
        }
        declared = f"{{{', '.join(f'{key}: {value}' for key, value in settings.items() if value)}}}"
    elif not re.fullmatch(r"[\w ]+", declared):
        declared = _quote(declared)
    return f"  {name}: {declared}" + (f"    # {column.remark}" if column.remark else "")


def _render_event_time(times: Sequence[ProposedColumn]) -> Iterator[str]:
    if not times:
        yield f"event-time: {KAFKA_TIMESTAMP_COLUMN}    # no field is a time"
        return
    other_names = ", ".join(_format_name(column.name) for column in times[1:5])
    first = _format_name(times[0].name)
    yield f"event-time: {first}" + (f"    # or: {other_names}" if other_names else "")


def _render_layout(sample: Sample, columns: Sequence[ProposedColumn], event_time: str) -> Iterator[str]:
    """Yield partitioning and sort order, unless the event time's name needs quotes."""
    if not _is_plain(event_time):
        return
    rate = sample.records_per_day
    daily = None if rate is None else rate * _average_value_bytes(sample) / 4
    if daily is not None and daily >= MIN_HOURLY_BYTES:
        yield f"partition-by: [hour({event_time})]    # an hour has about {format_rounded_bytes(daily / 24)}"
    elif daily is not None and daily < MIN_DAILY_BYTES:
        yield f"partition-by: [month({event_time})]    # a day has only about {format_rounded_bytes(daily)}"
        yield "complete: day"
    else:
        comment = "" if daily is None else f"    # a day has about {format_rounded_bytes(daily)}"
        yield f"partition-by: [day({event_time})]{comment}"
    few = [c for c in columns if c.type in {"string", "int", "long"} and c.distinct and _is_plain(c.name)]
    repetitive = [c for c in few if 1 < (c.distinct or 0) <= min(MAX_SORT_COLUMN_VALUES, len(sample.records) // 4)]
    texts = sorted((c for c in repetitive if c.type == "string"), key=lambda c: -(c.distinct or 0))
    by = [column.name for column in (texts or repetitive)[:1]]
    reason = (
        f"    # {by[0]}: {(texts or repetitive)[0].distinct:,} values; queries for one value skip most row groups"
        if by
        else ""
    )
    yield f"sort-by: [{', '.join([*by, event_time])}]{reason}"


def _format_name(name: str) -> str:
    return name if _is_plain(name) else _quote(name)


def _quote(text: str) -> str:
    """Quote a string for YAML and JSON, without escapes: YAML does not join escaped surrogate pairs."""
    return json.dumps(text, ensure_ascii=False)


def _is_plain(name: str) -> bool:
    """Return whether YAML and partition terms can contain the name without quotes."""
    return bool(_PLAIN.fullmatch(name)) and name.lower() not in _YAML_KEYWORDS


def decode_sample(declared: Mapping[str, Any], sample: Sample) -> DecodedChunk:
    """Decode the sampled values as a stream with this declaration would. Raises RegistryUnavailable."""
    source = {"bootstrap-servers": "localhost:9092", **declared["source"]}
    spec = validate_stream({**declared, "source": source}, Path("frazil infer"))  # no file has the proposal yet
    schema = iceberg.table_schema(spec)
    row_schema = change_schema(schema, spec.key) if spec.sinks.mode.replaces_rows else schema
    filled = value_schema(record_schema(row_schema, spec.coordinates), spec.key_header_columns)
    units = units_of_fields(filled, spec.units)
    deletes = spec.delete is not None and spec.delete.tombstones
    values = [record.value for record in sample.records if not (deletes and record.is_tombstone)]
    return create_decoder(dump_format(spec.value_format), filled, units)(RecordChunk.of_values(values))
