"""The marker of a stream's backfill (the table property `frazil.backfill.<stream>`), and the backfill's objects.

The objects, next to the stream's journals, are chunk journals, and one record for each published backfill. Records show
the audit which rows must be in a table. A marker changes only together with the stream's one backfill branch, which
fences older backfill processes.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shlex
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Any, NamedTuple

from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from frazil.commit.history import Period, ancestors_and_older_snapshots
from frazil.commit.journal import Journal, JournalStore
from frazil.commit.marker import BatchKey
from frazil.commit.staging_targets import list_targets, object_path
from frazil.errors import FrazilError, MarkerUnreadable
from frazil.host.processes import identify_process
from frazil.ingest.contract import Target
from frazil.offsets.spans import OffsetSets, TopicPartition
from frazil.typed_json import convert

FORMAT_VERSION = 1
PREFIX = "frazil.backfill."
MAX_RUNS = 20
"""Maximum number of recorded runs. If an older run is cleared in Airflow, it may repeat its abandoned backfill."""

_OPTIONS = {
    "from-time": "from",
    "from-offsets": "from",
    "to-time": "to",
    "to-offsets": "to",
    "from-event-time": "event-from",
    "to-event-time": "event-to",
    "files": "files",
    "chunk-records": "chunk-records",
}
"""Options of `frazil backfill` by the request's key."""


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
        process = identify_process(os.getpid())
        return cls(socket.gethostname(), process.pid, process.started_at_s)


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
    """Number of the last chunk that each epoch committed; 0 if the epoch committed no chunk."""
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
    """The last runs with a backfill that an operator abandoned. These runs cannot start a backfill again."""

    @property
    def is_open(self) -> bool:
        return self.state in {BackfillState.STAGING, BackfillState.STAGED}

    @property
    def chunks(self) -> int:
        return sum(self.batches.values())

    @property
    def replays(self) -> bool:
        return "dead-letters" in self.request

    @property
    def stays_on_branch(self) -> bool:
        """Whether all its chunks are staged and, as requested, not published."""
        return self.state is BackfillState.STAGED and self.request.get("target") == "branch"

    @property
    def options(self) -> dict[str, Any]:
        """The values of the request by the command's options. Offsets are `{topic: {partition: offset}}`."""
        if self.replays:
            return {"dead-letters": self.request["dead-letters"]}
        return {option: value for name, option in _OPTIONS.items() if (value := self.request.get(name))}

    @property
    def command(self) -> str:
        """The command that continues this backfill or replay. Publishes a backfill that stays on its branch."""
        if self.replays:
            options = str(self.request["dead-letters"])  # a sentence in the records of earlier versions
            return f"frazil dlq replay {self.stream} {options if options.startswith('--') else ''}".rstrip()
        texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in self.options.items()}
        words = [f"--{name} {shlex.quote(text)}" for name, text in texts.items()]
        words += ["--branch"] if self.request.get("target") == "branch" and not self.stays_on_branch else []
        return " ".join(["frazil backfill", self.stream, *words])

    def has_chunk(self, key: BatchKey) -> bool:
        """Whether a chunk is committed. An epoch commits its chunks in order."""
        return key.batch <= self.batches.get(key.epoch, 0)

    def with_epoch(self, epoch: int, run: str | None = None) -> BackfillMarker:
        runs = _latest_runs(self.runs, (run,) if run else ())
        return dataclasses.replace(
            self, epoch=epoch, batches={**self.batches, epoch: 0}, runs=runs, worker=Worker.current_process()
        )

    def as_abandoned(self, by: str | None) -> BackfillMarker:
        """Return the marker after abandonment. `by` is the operator; None if the backfill's own run abandoned it."""
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
        return convert(raw, cls)


def _latest_runs(earlier_runs: tuple[str, ...], current: tuple[str, ...]) -> tuple[str, ...]:
    return (*(run for run in earlier_runs if run not in current), *current)[-MAX_RUNS:]


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
    """Return the backfill that is open for dead letters, but published (or `abandoned`) in the default table."""
    backfill, in_dead_letters = read_backfill(default_marker, stream), read_backfill(dead_letters, stream)
    if backfill is None or in_dead_letters is None or in_dead_letters.id != backfill.id or not in_dead_letters.is_open:
        return None
    return backfill if backfill.state is BackfillState.PUBLISHED or (abandoned and not backfill.is_open) else None


def is_last_backfill(properties: Mapping[str, str], backfill: BackfillMarker) -> bool:
    """Return whether these properties of a routed table name this backfill as the last to add rows."""
    last = read_backfill(properties, backfill.stream)
    return last is not None and last.id == backfill.id


def open_backfills(properties: Mapping[str, str]) -> list[BackfillMarker]:
    """Return the backfills that are neither published nor abandoned. Raises `MarkerUnreadable`."""
    streams = [name.removeprefix(PREFIX) for name in properties if name.startswith(PREFIX)]
    return [backfill for stream in streams if (backfill := read_backfill(properties, stream)) and backfill.is_open]


@dataclass(frozen=True, slots=True)
class BackfillRecord:
    """The record of one backfill, stored in `_frazil/<stream>/backfills/<id>.json` before the backfill is published."""

    backfill: BackfillMarker
    late: Mapping[int, int]
    """Number of late rows by window start, in microseconds since 1970."""
    replayed: OffsetSets = field(default_factory=dict)
    """The offsets of dead letters that became rows; empty unless the backfill is a replay."""
    routed: Mapping[Target, OffsetSets] = field(default_factory=dict)
    """The part of `replayed` with rows in routed tables."""

    @property
    def selects(self) -> bool:
        """Whether the backfill read only some records, by event time or file."""
        return any(self.backfill.request.get(name) for name in ("from-event-time", "to-event-time", "files"))

    def to_bytes(self) -> bytes:
        raw: dict[str, Any] = {"backfill": self.backfill.to_json(), "late": self.late}
        if self.replayed:
            raw["replayed"] = _encode_offsets(self.replayed)
        if self.routed:
            raw["routed"] = {target: _encode_offsets(offsets) for target, offsets in self.routed.items()}
        return json.dumps(raw, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> BackfillRecord:
        raw: dict[str, Any] = json.loads(data)
        late = {int(begin): rows for begin, rows in raw["late"].items()}
        routed = {target: _decode_offsets(offsets) for target, offsets in raw.get("routed", {}).items()}
        return cls(BackfillMarker.from_json(raw["backfill"]), late, _decode_offsets(raw.get("replayed", ())), routed)


def _encode_offsets(offsets: OffsetSets) -> list[tuple[str, int, str]]:
    return [
        (topic, partition, base64.b64encode(bitmap.serialize()).decode())
        for (topic, partition), bitmap in sorted(offsets.items(), key=itemgetter(0))
    ]


def _decode_offsets(raw: Iterable[Sequence[Any]]) -> dict[TopicPartition, BitMap64]:
    return {(topic, partition): BitMap64.deserialize(base64.b64decode(offsets)) for topic, partition, offsets in raw}


def backfills_folder(journals: JournalStore) -> str:
    return f"{journals.state}/backfills"


def record_path(journals: JournalStore, backfill_id: str) -> str:
    return f"{backfills_folder(journals)}/{backfill_id}.json"


def load_record(journals: JournalStore, backfill: BackfillMarker) -> BackfillRecord:
    """Return the record of a published replay. Raises FrazilError if it is missing."""
    path = record_path(journals, backfill.id)
    data = journals.store.get(path)
    if data is None:
        raise FrazilError(
            f"the record of replay {backfill.id} of stream {backfill.stream!r} is missing, so frazil cannot determine "
            f"which dead letters became rows. Restore {path}"
        )
    return BackfillRecord.from_bytes(data)


def backfill_folder(journals: JournalStore, backfill_id: str) -> str:
    return f"{backfills_folder(journals)}/{backfill_id}"


def backfill_journals(journals: JournalStore, backfill_id: str) -> JournalStore:
    return JournalStore(journals.store, backfill_folder(journals, backfill_id))


def record_given_up_rows(journals: JournalStore, backfill_id: str, target: Target) -> None:
    """Record that an operator discarded rows of a published backfill, which waited for a removed routed table."""
    journals.store.put(object_path(_given_up_folder(journals, backfill_id), target), b"{}")


def list_given_up_targets(journals: JournalStore, backfill_id: str) -> set[Target]:
    return list_targets(journals.store, _given_up_folder(journals, backfill_id))


def _given_up_folder(journals: JournalStore, backfill_id: str) -> str:
    return f"{backfill_folder(journals, backfill_id)}/given-up"


def committed_chunks(journals: JournalStore, backfill: BackfillMarker) -> list[Journal]:
    staged = backfill_journals(journals, backfill.id)
    return [journal for key in staged.keys() if backfill.has_chunk(key) and (journal := staged.get(key))]  # noqa: SIM118 - no mapping


def chunk_topic_ids(own_chunks: Iterable[Journal]) -> dict[str, str]:
    return {topic: i for journal in own_chunks for topic, i in journal.source.topic_ids.items()}


def published_records(
    journals: JournalStore, metadata: TableMetadata, stream: str, *, window: Period | None = None
) -> Iterator[BackfillRecord]:
    """Yield the records of published backfills. With `window`, only of backfills published to main in this period."""
    backfill = read_backfill(metadata.properties, stream)
    intended = backfill.id if backfill and backfill.state is not BackfillState.PUBLISHED else None
    if window is None:
        listed = [f.path for f in journals.store.list_files(backfills_folder(journals))]
        paths = [path for path in listed if path.endswith(".json") and path.rsplit("/", 2)[-2] == "backfills"]
    else:
        in_window = (s.summary for s in ancestors_and_older_snapshots(metadata) if s.timestamp_ms in window)
        paths = [str(s["frazil.commit-record"]) for s in in_window if s and s.get("frazil.backfill-stream") == stream]
    for path in paths:
        data = journals.store.get(path)
        record = BackfillRecord.from_bytes(data) if data else None
        if record and record.backfill.id != intended:
            yield record
