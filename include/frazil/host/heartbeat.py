"""The writer's status: written by a separate thread, and readable without a JVM."""

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
    """Records are unread, without progress towards committing them."""
    WATERMARK = "watermark"
    """Commits advance the offsets, but the watermark stays, or stays unknown."""
    TRANSACTION = "transaction"
    """Records wait for the end of a transaction, of Kafka's or of a captured database."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A healthy process that makes no progress; `frazil.stream.stall` decides when."""

    kind: StallKind
    since_ms: int
    held_back_by: str | None
    """The topic-partition, such as `flights-3`; None if the planner is silent and no partition is known."""
    reason: str
    """A sentence: what, where, since when, and what to do."""

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
    """Time of the last change of the phase, the batch, or the count of the batch's records or merged rows."""
    epoch: int | None = None
    batch: int | None = None
    batch_records: int = 0
    """Records that the current batch has read so far."""
    merged_rows: int = 0
    """Rows of changes and of the table that the current merge has read so far."""
    lag: int | None = None
    """Records in Kafka, up to the last stable offset, that are not committed to the table."""
    in_transactions: int = 0
    """Offsets beyond these, which wait for transactions to end."""
    backpressure_ms: int = 0
    """Excess of the last batch's time over the commit interval, or the current one already does; 0 once nothing waits
    in Kafka.
    """
    last_commit_at_ms: int | None = None
    last_commit_snapshot: int | None = None
    watermark_ms: int | None = None
    table_location: str | None = None
    """Set once the table exists; the desired state and the journals are next to it."""
    error: str | None = None
    stall: Stall | None = None
    throttle: str | None = None
    """Why the commit interval is stretched, or would be (`commit.throttle`)."""
    outage: str | None = None
    """What catalog or storage fails to do, while the writer waits for it."""
    distribution: str | None = None
    """Whether the last batch's rows were shuffled, and why; None if the stream declares `distribution: none`."""
    notices: tuple[str, ...] = ()
    """Sentences for operators while the writer runs well, such as why it reads in a slower way."""

    def write(self, exchange: Exchange) -> None:
        exchange.write(NAME, dataclasses.asdict(self))

    @classmethod
    def read(cls, exchange: Exchange) -> Heartbeat | None:
        """The last heartbeat, or None if no writer has run."""
        raw = exchange.read(NAME)
        return None if raw is None else cls.from_json(raw)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Heartbeat:
        # Skip additions of later versions, whose writers may run next to this reader during an upgrade.
        known = {field.name: raw[field.name] for field in dataclasses.fields(cls) if field.name in raw}
        stall = Stall.from_json(raw["stall"]) if raw.get("stall") else None
        notices = tuple(raw.get("notices", ()))
        return cls(**{**known, "phase": Phase(raw["phase"]), "stall": stall, "notices": notices})
