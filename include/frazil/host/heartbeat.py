"""The heartbeat with a writer's status: a separate thread writes it, and it can be read without a JVM."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from frazil.host.exchange import Exchange

NAME = "status.json"


class Phase(StrEnum):
    STARTING = "starting"
    TAKING_OVER = "taking-over"
    WAITING = "waiting"
    STAGING = "staging"
    JOURNALING = "journaling"
    COMMITTING = "committing"
    STOPPING = "stopping"
    ENDED = "ended"


class StallKind(StrEnum):
    OFFSETS = "offsets"
    """Records are unread, and the writer makes no progress towards committing them."""
    WATERMARK = "watermark"
    """Commits advance the offsets, but the watermark does not advance, or stays unknown."""
    TRANSACTION = "transaction"
    """Records wait for the end of a transaction in Kafka or in a captured database."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Reports that a healthy process makes no progress; `frazil.stream.stall` decides when."""

    kind: StallKind
    since_ms: int
    held_back_by: str | None
    """The topic-partition that holds the writer back, such as `flights-3`; None if it is unknown because the planner is
    silent.
    """
    reason: str
    """A sentence that says what stalls, where, since when, and what to do."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Stall:
        return cls(**{**value, "kind": StallKind(value["kind"])})


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A writer's status. Times are milliseconds since the epoch, UTC."""

    stream: str
    pid: int
    spec_fingerprint: str
    phase: Phase
    written_at_ms: int
    advanced_at_ms: int
    """The time when the phase, the batch, or the batch's count of records or merged rows last changed."""
    epoch: int | None = None
    batch: int | None = None
    batch_records: int = 0
    """Number of records that the current batch has read until now."""
    merged_rows: int = 0
    """Number of rows, of changes and of the table, that the current merge has read until now."""
    lag: int | None = None
    """Number of records in Kafka, up to the last stable offset, that are not committed to the table."""
    in_transactions: int = 0
    """Number of offsets beyond `lag`, which wait for transactions to end."""
    backpressure_ms: int = 0
    """Milliseconds by which the last batch, or already the current one, exceeds the commit interval; 0 once no record
    waits in Kafka.
    """
    last_commit_at_ms: int | None = None
    last_commit_snapshot: int | None = None
    watermark_ms: int | None = None
    table_location: str | None = None
    """Set once the table exists; the desired state and the journals are stored next to this location."""
    error: str | None = None
    stall: Stall | None = None
    throttle: str | None = None
    """Why the commit interval is longer than declared, or would be (`commit.throttle`)."""
    outage: str | None = None
    """The failing operation of the catalog or storage that the writer waits for."""
    distribution: str | None = None
    """Whether the last batch's rows were shuffled, and why; None if the stream declares `distribution: none`."""
    notices: tuple[str, ...] = ()
    """Sentences for operators about a writer that runs well, such as why it reads in a slower way."""

    def write(self, exchange: Exchange) -> None:
        exchange.write(NAME, dataclasses.asdict(self))

    @classmethod
    def read(cls, exchange: Exchange) -> Heartbeat | None:
        """Return the last heartbeat; None if no writer has run."""
        raw = exchange.read(NAME)
        return None if raw is None else cls.from_json(raw)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Heartbeat:
        # Skip additions of later versions, whose writers may run next to this reader during an upgrade.
        known = {field.name: raw[field.name] for field in dataclasses.fields(cls) if field.name in raw}
        stall = Stall.from_json(raw["stall"]) if raw.get("stall") else None
        notices = tuple(raw.get("notices", ()))
        return cls(**{**known, "phase": Phase(raw["phase"]), "stall": stall, "notices": notices})
