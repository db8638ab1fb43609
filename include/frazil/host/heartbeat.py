"""The heartbeat with a writer's status. A separate thread writes it; readers need no JVM."""

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
    KAFKA = "kafka"
    """No broker answers. Nothing is lost, and the writer continues by itself once one does."""
    OFFSETS = "offsets"
    """Unread records exist, and the writer makes no progress towards committing them."""
    WATERMARK = "watermark"
    """Commits advance the offsets, but the watermark stays the same or unknown."""
    TRANSACTION = "transaction"
    """Records wait for the end of a transaction in Kafka or in a captured database."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A stall: a healthy process that makes no progress. `frazil.stream.stall` detects it."""

    kind: StallKind
    since_ms: int
    held_back_by: str | None
    """The topic partition that stalls the writer, such as `flights-3`; None if unknown."""
    reason: str
    """A sentence: what stalls, where, since when, and what to do."""

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
    """When the phase, the batch, or the batch's number of records or merged rows last changed."""
    epoch: int | None = None
    batch: int | None = None
    batch_records: int = 0
    """Number of records that the current batch has read so far."""
    merged_rows: int = 0
    """Number of rows, of changes and of the table, that the current merge has read so far."""
    lag: int | None = None
    """Number of records in Kafka, up to the last stable offset, that are not committed to the table."""
    caught_up_at_ms: int | None = None
    """Time of Kafka's newest answer whose records are all committed, so no waiting record is older; None if unknown."""
    in_transactions: int = 0
    """Number of offsets beyond `lag`, which wait for transactions to end."""
    backpressure_ms: int = 0
    """Milliseconds by which the last or current batch exceeds the commit interval; 0 if no record waits in Kafka."""
    last_commit_at_ms: int | None = None
    last_commit_snapshot: int | None = None
    watermark_ms: int | None = None
    table_location: str | None = None
    """Set once the table exists; the desired state and the journals are stored next to this location."""
    error: str | None = None
    stall: Stall | None = None
    throttle: str | None = None
    """Why `commit.throttle` extends the commit interval, or would extend it; None if it does not."""
    outage: str | None = None
    """The failing operation of a service that the writer retries; None if none fails."""
    outage_code: int | None = None
    """The exit code of this failure's error, which names the service; None if no single service fails."""
    distribution: str | None = None
    """Whether the last batch's rows were shuffled, and why; None if the stream declares `distribution: none`."""
    notices: tuple[str, ...] = ()
    """Sentences for operators that are not errors, such as why the writer reads in a slower way."""

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
