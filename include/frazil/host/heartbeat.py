"""The heartbeat, in which a writer reports its status. A separate thread writes it. Readers need no JVM."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from frazil.host.exchange import Exchange

NAME = "status.json"
"""The file name of the heartbeat in the run folder."""


class Phase(StrEnum):
    """What a writer is doing."""

    STARTING = "starting"
    TAKING_OVER = "taking-over"
    WAITING = "waiting"
    STAGING = "staging"
    JOURNALING = "journaling"
    COMMITTING = "committing"
    STOPPING = "stopping"
    ENDED = "ended"


class StallKind(StrEnum):
    """What keeps a healthy writer from making progress."""

    KAFKA = "kafka"
    """No broker responds. Nothing is lost, and the writer continues by itself when a broker responds again."""
    OFFSETS = "offsets"
    """There are unread records, but the writer makes no progress towards committing them."""
    WATERMARK = "watermark"
    """Commits advance the offsets, but the watermark does not advance or remains unknown."""
    TRANSACTION = "transaction"
    """Records wait until a transaction ends in Kafka or in a captured database."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A stall: a healthy writer makes no progress. `frazil.stream.stall` detects it."""

    kind: StallKind
    since_ms: int
    """When the stall began, in milliseconds since the epoch."""
    held_back_by: str | None
    """The topic-partition that stalls the writer, such as `flights-3`; None if it is unknown."""
    reason: str
    """A sentence that says what stalls, where, since when, and what to do."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Stall:
        return cls(**{**value, "kind": StallKind(value["kind"])})


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A writer's status. Times are in milliseconds since the epoch, UTC."""

    stream: str
    pid: int
    spec_fingerprint: str
    phase: Phase
    written_at_ms: int
    advanced_at_ms: int
    """When the writer last made progress: the phase, the batch, or its number of records or merged rows changed."""
    epoch: int | None = None
    batch: int | None = None
    batch_records: int = 0
    """Number of records that the current batch has read so far."""
    merged_rows: int = 0
    """Number of rows that the current merge has read so far, both changes and rows of the table."""
    lag: int | None = None
    """Number of records in Kafka, up to the last stable offset, that are not committed to the table."""
    caught_up_at_ms: int | None = None
    """Time of the newest poll of Kafka whose records are all committed now, so every unread record is newer. None if
    unknown.
    """
    in_transactions: int = 0
    """Number of offsets beyond `lag` that wait for transactions to end."""
    backpressure_ms: int = 0
    """Milliseconds by which the last or current batch exceeds the commit interval; 0 if Kafka has no unread records."""
    last_commit_at_ms: int | None = None
    last_commit_snapshot: int | None = None
    watermark_ms: int | None = None
    table_location: str | None = None
    """The table's location, once the table exists. The desired state and the journals are stored there."""
    error: str | None = None
    stall: Stall | None = None
    throttle: str | None = None
    """Why `commit.throttle` extends, or would extend, the commit interval; None if it does not."""
    outage: str | None = None
    """The failing operation of a service that the writer retries; None if none fails."""
    outage_code: int | None = None
    """The exit code of this failure's error, which names the service; None if no single service fails."""
    distribution: str | None = None
    """Whether the rows of the last batch were shuffled, and why; None if the stream declares `distribution: none`."""
    notices: tuple[str, ...] = ()
    """Sentences that operators should read but that are not errors, such as why the writer reads in a slower way."""

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
