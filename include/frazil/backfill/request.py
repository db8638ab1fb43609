"""Defines and validates a backfill's request. Loads neither PyIceberg nor Spark, because DAG files import it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, Field, ValidationError, field_validator

from frazil.errors import SpecError
from frazil.offsets.spans import TopicPartition
from frazil.partitions.windows import microseconds
from frazil.spec.formats import envelope_of
from frazil.spec.model import STREAM_NAME, StreamSpec
from frazil.spec.values import Model
from frazil.timetext import format_utc, parse_moment

UtcMoment = Annotated[AwareDatetime, AfterValidator(lambda moment: parse_moment(moment).astimezone(UTC))]
"""A moment in UTC, so that equal moments have equal text."""
Offset = Annotated[int, Field(ge=0)]
OffsetsByTopic = dict[str, dict[int, Offset]]
"""`{topic: {partition: offset}}`. A topic-partition that is missing here has no bound."""


class BackfillRequest(Model):
    """A request for a backfill. Bounds are `[from, to)`; without bounds, all missing records are read."""

    stream: str = Field(pattern=STREAM_NAME)
    from_time: UtcMoment | None = None
    """A bound on Kafka's record timestamps, which Kafka's time index maps to offsets."""
    to_time: UtcMoment | None = None
    from_offsets: OffsetsByTopic | None = None
    to_offsets: OffsetsByTopic | None = None
    from_event_time: UtcMoment | None = None
    """A bound on event times. Rows outside the bounds, and records that cannot be decoded, are left out."""
    to_event_time: UtcMoment | None = None
    files: str | None = None
    """Absolute path or URI of a folder or file that is read instead of Kafka. Its records have Kafka coordinates."""
    dead_letters: str | None = None
    """A replay's options of `frazil dlq replay`, or `all`; None for a backfill.

    `files` has copies of the dead letters.
    """
    listing: str | None = None
    """Fingerprint of the files' paths, sizes and times, set when a backfill of files is opened."""
    target: Literal["table", "branch"] = "table"
    """`branch` keeps the audited records on a branch until a run with `table` publishes them."""
    chunk_records: int = Field(1_000_000, gt=0)
    """Approximate number of records that are staged and committed together. An interruption loses at most this work."""
    run: str | None = None
    """The caller, such as an Airflow run. If an operator abandons the caller's backfill, it cannot start it again."""

    def find_conflicts(self) -> Iterator[str]:
        for bound in ("from", "to"):
            if getattr(self, f"{bound}_time") and getattr(self, f"{bound}_offsets") is not None:
                where = "begins" if bound == "from" else "ends"
                yield f"{bound}-time and {bound}-offsets both set where the backfill {where}: give only one"
        if self.files and any((self.from_time, self.to_time, self.from_offsets, self.to_offsets)):
            yield "files cannot be combined with Kafka's times or offsets: give only one; event times may be added"
        for kind in ("time", "event_time"):
            begin, end = getattr(self, f"from_{kind}"), getattr(self, f"to_{kind}")
            if begin and end and begin >= end:
                name = kind.replace("_", "-")
                yield f"to-{name} ({_utc_text(end)}) is not after from-{name} ({_utc_text(begin)})"

    @field_validator("files")
    @classmethod
    def _check_absolute(cls, files: str | None) -> str | None:
        if files and not files.startswith("/") and "://" not in files:
            raise ValueError(
                f"{files!r} is neither an absolute path nor a URI, so its meaning would depend on the host"
            )
        return files and (files.rstrip("/") or files)

    @property
    def digest(self) -> str:
        """A digest of the request. The same request again continues the same backfill."""
        requested = self.model_dump_json(exclude={"target", "chunk_records", "run"})
        return hashlib.sha256(requested.encode()).hexdigest()[:10]

    @property
    def event_times_us(self) -> tuple[int, int] | None:
        """The event-time range `[from, to)` in microseconds since 1970; None if the request has no such range."""
        if self.from_event_time is None and self.to_event_time is None:
            return None
        begin, end = self.from_event_time, self.to_event_time
        return (microseconds(begin) if begin else -(2**63), microseconds(end) if end else 2**63 - 1)

    def offset_bounds(self, bound: Literal["from", "to"]) -> dict[TopicPartition, int]:
        """Return the lower or upper offset bounds by topic-partition; empty without such bounds."""
        by_topic = (self.from_offsets if bound == "from" else self.to_offsets) or {}
        return {(topic, partition): offset for topic, parts in by_topic.items() for partition, offset in parts.items()}


def parse_request(raw: Mapping[str, Any]) -> BackfillRequest:
    """Parse a request with kebab-case keys; empty values count as absent. Raises SpecError with all problems."""
    try:
        return BackfillRequest.model_validate({k: v for k, v in raw.items() if v not in (None, "", {})})
    except ValidationError as error:
        problems = [
            ": ".join(filter(None, (".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, "))))
            for e in error.errors()
        ]
        raise SpecError(f"this backfill cannot be run: {'; '.join(problems)}") from None


def check_not_in_future(request: BackfillRequest, now_ms: int) -> None:
    begin = request.from_time
    if begin is not None and microseconds(begin) > now_ms * 1000:
        raise SpecError(
            f"this backfill cannot be run: from-time ({_utc_text(begin)}) is in the future (it is now "
            f"{format_utc(now_ms)}). Kafka has no such records yet, and the stream itself will read them"
        )


def _utc_text(moment: datetime) -> str:
    return format_utc(microseconds(moment) // 1000)


def can_delete_rows(spec: StreamSpec) -> bool:
    return spec.sinks.mode.replaces_rows and (spec.delete is not None or envelope_of(spec.source.format) is not None)


def check_restores_no_deleted_rows(spec: StreamSpec, request: BackfillRequest) -> None:
    """Raise SpecError if a backfill skips records that deleted rows, because it may then restore deleted rows."""
    bounds = ("to_time", "to_offsets", "from_event_time", "to_event_time", "files")
    limits = [name.replace("_", "-") for name in bounds if getattr(request, name) is not None]
    if limits and can_delete_rows(spec) and not request.dead_letters:
        raise SpecError(
            f"stream {spec.name!r} deletes rows, and the table does not record deleted rows: with {', '.join(limits)}, "
            "a backfill could restore rows that a later record deleted. Nothing was changed. Give only from-time or "
            "from-offsets; the backfill then reads everything up to the stream's position"
        )


def check_coordinates(spec: StreamSpec, *, table_has_coordinates: bool = True) -> None:
    """Raise SpecError unless the stream, and its table if known, have Kafka coordinates."""
    if not (spec.coordinates and table_has_coordinates):
        where = "its table does not have the columns" if spec.coordinates else "coordinates: false"
        raise SpecError(
            f"stream {spec.name!r} does not store Kafka coordinates ({where}), so frazil cannot determine which "
            "records its table has. Backfills of the stream and replays of its dead letters are not possible"
        )
