"""The marker of a stream's backfill: the table property `frazil.backfill.<stream>`. A marker changes only together with
the backfill branch, which fences older backfill processes. A stream has one backfill branch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey
from frazil.errors import MarkerUnreadable
from frazil.host.processes import identify_process

FORMAT_VERSION = 1
PREFIX = "frazil.backfill."
MAX_RUNS = 20
"""Maximum number of recorded runs. An older run that is cleared in Airflow may repeat its abandoned backfill."""


class BackfillState(StrEnum):
    STAGING = "staging"
    STAGED = "staged"
    """All chunks of the backfill are committed to the branch."""
    PUBLISHED = "published"
    ABANDONED = "abandoned"


class Worker(NamedTuple):
    host: str
    pid: int
    started_at_s: float

    @classmethod
    def current_process(cls) -> Worker:
        own = identify_process(os.getpid())
        return cls(socket.gethostname(), own.pid, own.started_at_s)


@dataclass(frozen=True, slots=True)
class BackfillMarker:
    """A backfill's progress. Each run begins a new epoch, independent of the stream's epochs."""

    stream: str
    id: str
    request: Mapping[str, Any]
    """The `BackfillRequest` as JSON, with keys in kebab-case."""
    digest: str
    epoch: int
    state: BackfillState = BackfillState.STAGING
    batches: Mapping[int, int] = field(default_factory=dict)
    """The last chunk that each epoch committed; 0 if the epoch committed no chunk."""
    planned: int = 0
    """The total number of chunks, as estimated by the last run."""
    records: int = 0
    rejected: int = 0
    cast: int = 0
    bytes: int = 0
    files: int = 0
    worker: Worker | None = None
    runs: tuple[str, ...] = ()
    """The last runs that worked on the backfill, such as Airflow's run ids, oldest first."""
    abandoned_by: str = ""
    abandoned_runs: tuple[str, ...] = ()
    """The last runs whose backfills an operator abandoned. They do not start a backfill again."""

    @property
    def is_open(self) -> bool:
        return self.state in {BackfillState.STAGING, BackfillState.STAGED}

    @property
    def chunks(self) -> int:
        return sum(self.batches.values())

    @property
    def replays(self) -> bool:
        return "dead-letters" in self.request

    def has_chunk(self, key: BatchKey) -> bool:
        """Whether a chunk is committed. An epoch commits its chunks in order."""
        return key.batch <= self.batches.get(key.epoch, 0)

    def with_epoch(self, epoch: int, run: str | None = None) -> BackfillMarker:
        runs = _latest_runs(self.runs, (run,) if run else ())
        return dataclasses.replace(
            self, epoch=epoch, batches={**self.batches, epoch: 0}, runs=runs, worker=Worker.current_process()
        )

    def as_abandoned(self, by: str | None) -> BackfillMarker:
        """Return the abandoned backfill's marker. `by` is the operator; None if its own run abandoned it."""
        ended = dataclasses.replace(self, state=BackfillState.ABANDONED)
        if not by:
            return ended
        return dataclasses.replace(ended, abandoned_by=by, abandoned_runs=_latest_runs(self.abandoned_runs, self.runs))

    def with_chunk(self, journal: Journal, *, planned: int) -> BackfillMarker:
        files = [f for f in journal.files if f.target != "dead-letters"]
        return dataclasses.replace(
            self,
            state=BackfillState.STAGING,
            batches={**self.batches, journal.key.epoch: journal.key.batch},
            planned=max(planned, self.chunks + 1),
            records=self.records + journal.records,
            rejected=self.rejected + journal.rejected,
            cast=self.cast + journal.cast,
            bytes=self.bytes + sum(f.bytes for f in files),
            files=self.files + len(files),
        )

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT_VERSION, **dataclasses.asdict(self)}

    def to_property(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> BackfillMarker:
        if raw["format"] != FORMAT_VERSION:
            raise ValueError(f"format {raw['format']}, but this version of frazil reads format {FORMAT_VERSION}")
        names = {f.name for f in dataclasses.fields(cls)}
        batches = {int(epoch): last for epoch, last in raw["batches"].items()}
        known = {k: v for k, v in raw.items() if k in names}
        runs = {name: tuple(known.get(name, ())) for name in ("runs", "abandoned_runs")}
        worker = Worker(*raw["worker"]) if raw.get("worker") else None
        return cls(**{**known, **runs, "state": BackfillState(raw["state"]), "batches": batches, "worker": worker})


def _latest_runs(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    return (*(run for run in before if run not in now), *now)[-MAX_RUNS:]


def property_name(stream: str) -> str:
    return PREFIX + stream


def branch_name(stream: str) -> str:
    return f"frazil-backfill-{stream}"


def staging_stream(stream: str, backfill_id: str) -> str:
    """Return the name under which a backfill stages its files."""
    return f"{stream}/backfill-{backfill_id}"


def read_backfill(properties: Mapping[str, str], stream: str) -> BackfillMarker | None:
    """Return the marker of the stream's last backfill, if any. Raises `MarkerUnreadable`."""
    text = properties.get(property_name(stream))
    if text is None:
        return None
    try:
        return BackfillMarker.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MarkerUnreadable(
            f"the table property {property_name(stream)!r} is not a backfill marker ({error!r}): another version of "
            "frazil wrote it, or it was edited by hand. Run the version that wrote it, or restore the property"
        ) from error


def unsettled_backfill(
    default_marker: Mapping[str, str], dead_letters: Mapping[str, str], stream: str, *, abandoned: bool = False
) -> BackfillMarker | None:
    """Return a backfill that is open in the dead-letter table, but published (or `abandoned`) in the default table."""
    backfill, own = read_backfill(default_marker, stream), read_backfill(dead_letters, stream)
    if backfill is None or own is None or own.id != backfill.id or not own.is_open:
        return None
    return backfill if backfill.state is BackfillState.PUBLISHED or (abandoned and not backfill.is_open) else None


def has_backfill_rows(properties: Mapping[str, str], backfill: BackfillMarker) -> bool:
    """Return whether this backfill was the last one to add rows to the routed table with these properties."""
    found = read_backfill(properties, backfill.stream)
    return found is not None and found.id == backfill.id


def open_backfills(properties: Mapping[str, str]) -> list[BackfillMarker]:
    """Return the backfills that are neither published nor abandoned. Raises `MarkerUnreadable`."""
    streams = [name.removeprefix(PREFIX) for name in properties if name.startswith(PREFIX)]
    return [backfill for stream in streams if (backfill := read_backfill(properties, stream)) and backfill.is_open]
