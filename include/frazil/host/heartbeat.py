"""The heartbeat, in which a writer reports its status. A separate thread writes it. Readers need no JVM."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from frazil.errors import Failure
from frazil.host.records import StoredError
from frazil.json_files import read_json, replace_json
from frazil.typed_json import convert

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
    """What keeps a healthy writer from making progress."""

    KAFKA = "kafka"
    """No broker responds. The writer continues by itself when one does."""
    TOPIC = "topic"
    """Kafka has no topic of the stream. The writer continues by itself when it exists."""
    LEADER = "leader"
    """A topic-partition has no leader. The writer reads the other partitions, and holds the watermark back."""
    OFFSETS = "offsets"
    """There are unread records, but the writer makes no progress towards committing them."""
    WATERMARK = "watermark"
    """Commits advance the offsets, but the watermark does not advance or remains unknown."""
    TRANSACTION = "transaction"
    """Records wait until a transaction ends in Kafka or in a captured database."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The reason why a healthy writer makes no progress. `frazil.stream.stall` detects it."""

    kind: StallKind
    since_ms: int
    held_back_by: str | None
    """The topic-partition that stalls the writer, such as `flights-3`; None if no single one does."""
    reason: str
    """A sentence that says what stalls, where, how long, and what to do, unless `remedy` says it."""
    remedy: str = ""

    @property
    def failure(self) -> Failure:
        return Failure(self.reason, self.remedy)


@dataclass(frozen=True, slots=True)
class Heartbeat(StoredError):
    """A writer's status. Times are in milliseconds since the epoch, UTC."""

    stream: str
    pid: int
    spec_fingerprint: str
    phase: Phase
    written_at_ms: int
    advanced_at_ms: int
    """When the phase, the batch, or its number of records or merged rows last changed."""
    epoch: int | None = None
    batch: int | None = None
    batch_records: int = 0
    merged_rows: int = 0
    """Number of rows, of changes and of the table, that the current merge has read so far."""
    lag: int | None = None
    """Number of records in Kafka, up to the last stable offset, that are not committed to the table."""
    caught_up_at_ms: int | None = None
    """Time of the newest poll of Kafka whose records are all committed now; None before the first such poll."""
    in_transactions: int = 0
    """Number of offsets beyond `lag` that wait for transactions to end."""
    backpressure_ms: int = 0
    """Milliseconds by which the last or current batch exceeds the commit interval."""
    last_commit_at_ms: int | None = None
    last_commit_snapshot: int | None = None
    watermark_ms: int | None = None
    stall: Stall | None = None
    throttle: str | None = None
    """Why `commit.throttle` extends, or would extend, the commit interval; None if it does not."""
    outage: str | None = None
    """A sentence about a failure that is retried, or about routed tables that are behind; else None."""
    outage_code: int | None = None
    """The exit code of the failed operation's error, which names the service; None if no single service failed."""
    distribution: str | None = None
    """Whether the rows of the last batch were shuffled, and why; None with `distribution: none`."""
    notices: tuple[str, ...] = ()
    """Sentences that operators should read but that are not errors."""
    table: str = ""
    """The table that the writer commits to. Empty for an application."""

    def write(self, folder: Path) -> None:
        replace_json(folder / NAME, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Heartbeat | None:
        raw = read_json(folder / NAME)
        # Skips additions of later versions, whose writers may run next to this reader during an upgrade.
        return None if raw is None else convert(raw, cls)
