"""The pre-commit: one durable object per batch, written before the commit, whole or not at all.

After a crash the next epoch commits it without reading Kafka or writing Parquet again, if its start is still where
the marker stands; otherwise it is discarded with its files. Once committed it stays as the commit record that the
snapshot's summary points to, which the audit and the way back from a rollback read; `fold` puts old ones together.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from operator import itemgetter
from typing import Any

from frazil.commit.folded_records import RECORDS_MOST, FoldedRecords, groups
from frazil.commit.marker import BatchKey, Fate, Marker, flat, nested
from frazil.ingest.contract import RangeProgress, StagedFile, Target
from frazil.kafka.identity import SourceIdentity
from frazil.offsets.spans import TopicPartition
from frazil.table.object_store import ObjectStore

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
RECORDS_ALONE = 1_024
"""Of the newest commit records, which audits of the last hours and health read."""
VOID = json.dumps({"format": FORMAT_VERSION, "void": True}).encode()
"""What stands at the key of a batch that must never be committed: its files are, or will be, deleted."""


NO_LETTERS = BatchKey(0, 0)


@dataclass(frozen=True, slots=True)
class Journal:
    """Everything the commit of one batch needs."""

    stream: str
    key: BatchKey
    table_uuid: str
    created_at_ms: int
    source: SourceIdentity
    progress: tuple[RangeProgress, ...]
    files: tuple[StagedFile, ...]
    """Of all tables: `StagedFile.target` says which."""
    letters_seen: BatchKey | None
    """The batch whose dead letters were the newest in their table when this one was staged, `NO_LETTERS` where none
    were; None in a journal of a frazil that did not ask what the table holds."""
    idle: frozenset[TopicPartition]
    offsets_after: Mapping[TopicPartition, int]
    """Where the whole stream stands once this batch is committed."""
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of the leaders that had `offsets_after`, where a broker said so."""
    windows: Mapping[int, int] | None = None
    """Rows by window of event time, by its start in microseconds since the epoch; None where they were not counted."""

    @property
    def records(self) -> int:
        return sum(p.records for p in self.progress)

    @property
    def rejected(self) -> int:
        return sum(p.rejected for p in self.progress)

    @property
    def future(self) -> int:
        """Rows whose event time is too far ahead to push the watermark."""
        return sum(p.future for p in self.progress)

    def staged_for(self, target: Target) -> tuple[StagedFile, ...]:
        return tuple(f for f in self.files if f.target == target)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT_VERSION,
                "stream": self.stream,
                "epoch": self.key.epoch,
                "batch": self.key.batch,
                "table-uuid": self.table_uuid,
                "created-at-ms": self.created_at_ms,
                "cluster-id": self.source.cluster_id,
                "topic-ids": dict(self.source.topic_ids),
                "progress": [dataclasses.asdict(p) for p in self.progress],
                "files": [f.to_json() for f in self.files],
                "letters-seen": self.letters_seen,
                # Not read any more: a frazil that knows no `letters-seen` needs it, should somebody go back to it, and
                # takes a batch then that begins where all dead letters end.
                "dead-letter-floor": {},
                "idle": nested(dict.fromkeys(self.idle, 1)),
                "offsets-after": nested(self.offsets_after),
                "leader-epochs": nested(self.leader_epochs),
                "windows": None if self.windows is None else dict(sorted(self.windows.items())),
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Journal | None:
        """None for what is not a whole journal of this format: a torn, foreign or newer object."""
        try:
            raw = json.loads(data)
            if raw["format"] != FORMAT_VERSION:
                return None
            return cls._from_json(raw)
        except (ValueError, KeyError, TypeError):
            return None

    @classmethod
    def _from_json(cls, raw: Mapping[str, Any]) -> Journal:
        return cls(
            stream=raw["stream"],
            key=BatchKey(raw["epoch"], raw["batch"]),
            table_uuid=raw["table-uuid"],
            created_at_ms=raw["created-at-ms"],
            source=SourceIdentity(raw["cluster-id"], raw["topic-ids"]),
            progress=tuple(RangeProgress(**p) for p in raw["progress"]),
            files=tuple(StagedFile.from_json(f) for f in raw["files"]),
            letters_seen=BatchKey(*raw["letters-seen"]) if raw.get("letters-seen") else None,
            idle=frozenset(flat(raw["idle"])),
            offsets_after=flat(raw["offsets-after"]),
            leader_epochs=flat(raw.get("leader-epochs", {})),
            # Journals of earlier writers count none, or late rows alone.
            windows=_counts(raw.get("windows")),
        )


def _counts(raw: Mapping[str, int] | None) -> dict[int, int] | None:
    return None if raw is None else {int(start): rows for start, rows in raw.items()}


class Unusable(Enum):
    """What a batch's key may hold instead of its journal."""

    ABSENT = "nothing"
    VOID = "the note that the batch must never be committed"
    FOREIGN = "a torn object, or another stream's or batch's journal"
    OTHER_TABLE = "the stream's journal, of another table that has the same folder"


class JournalStore:
    """The journals of one stream, at `<table location>/_frazil/<stream>/journal/<epoch>-<batch>.json`.

    A key is written once, by the writer that staged its batch; `void` is how a later epoch closes it. A record that was
    folded is found under the path and the key that it had.
    """

    def __init__(self, store: ObjectStore, state_location: str) -> None:
        self.store = store
        self.state = state_location
        """The folder that holds all that is kept of the stream beside its tables, journals among it."""
        self._folder = f"{state_location}/journal"
        self._folded = FoldedRecords(store, state_location)

    def path(self, key: BatchKey) -> str:
        return f"{self._folder}/{key.epoch:08d}-{key.batch:08d}.json"

    def put(self, journal: Journal) -> bool:
        """Write the journal durably; False when its key is taken: another writer closed this batch."""
        self.store.sync_files([f.path for f in journal.files])
        path, data = self.path(journal.key), journal.to_bytes()
        # A put whose answer was lost and that the client repeated finds itself.
        return self.store.put_if_absent(path, data) or self.store.get(path) == data

    def void_if_absent(self, key: BatchKey) -> bool:
        """Close a key that holds nothing, so that a paused writer cannot journal its batch any more; False if it did.

        Files may be deleted only when no journal names them, now or later.
        """
        return self.store.put_if_absent(self.path(key), VOID) or self.store.get(self.path(key)) == VOID

    def void(self, key: BatchKey) -> None:
        """Close a key that holds a journal."""
        self.store.put(self.path(key), VOID)

    def entry(self, key: BatchKey, *, table_uuid: str, stream: str) -> Journal | Unusable:
        """The batch's journal, if a whole one of this stream, table and key stands there."""
        data = self._get(key)
        if data is None:
            return Unusable.ABSENT
        if data == VOID:
            return Unusable.VOID
        journal = Journal.from_bytes(data)
        if journal is None or (journal.stream, journal.key) != (stream, key):
            return Unusable.FOREIGN
        return journal if journal.table_uuid == table_uuid else Unusable.OTHER_TABLE

    def get(self, key: BatchKey) -> Journal | None:
        return self.read(self.path(key))

    def read(self, path: str) -> Journal | None:
        """The record that a snapshot's summary names."""
        data = self.store.get(path)
        if data is None and (key := key_of(path)) is not None:
            data = self._folded.get(key)
        return _journal(data)

    def _get(self, key: BatchKey) -> bytes | None:
        data = self.store.get(self.path(key))
        return self._folded.get(key) if data is None else data

    def keys(self) -> list[BatchKey]:
        """Those of the journals that stand alone, in order; objects of other names are not ours and are left alone."""
        return sorted(filter(None, (key_of(f.path) for f in self.store.list_files(self._folder))))

    def oldest(self, keys: Sequence[BatchKey]) -> BatchKey | None:
        """Of the folded records, and of `keys`, those that stand alone."""
        return min([*keys[:1], *(s.first for s in self._folded.segments())], default=None)

    def of_other_tables(self, table_uuid: str) -> set[str]:
        """Paths of the objects that hold records of a table that has, or had, the same folder."""
        alone = {self.path(key): (self.store.get(self.path(key)),) for key in self.keys()}
        folded = {segment.path: tuple(self._folded.read(segment).values()) for segment in self._folded.segments()}
        return {
            path
            for path, records in (alone | folded).items()
            if any((found := _journal(data)) and found.table_uuid != table_uuid for data in records)
        }

    def highest_epoch(self) -> int:
        """Of all journals and records; 0 for none."""
        epochs = [*(key.epoch for key in self.keys()), *(s.last.epoch for s in self._folded.segments())]
        return max(epochs, default=0)

    def records(self, *, newest_first: bool = False, below: BatchKey | None = None) -> Iterator[Journal]:
        """Every journal that can be read, by key; those of batches that wait to be committed are among them."""
        alone: list[tuple[BatchKey, bytes | None]] = [(key, None) for key in self.keys()]
        # Listed after those that stand alone: what is folded meanwhile is in both, and counts once.
        folded = self._folded.items(newest_first=newest_first)
        both = heapq.merge(reversed(alone) if newest_first else alone, folded, key=itemgetter(0), reverse=newest_first)
        for key, found in groupby(both, key=itemgetter(0)):
            if below is not None and key >= below:
                continue
            data = next((data for _, data in found if data is not None), None)
            if journal := self.get(key) if data is None else _journal(data):
                yield journal

    def fold(
        self,
        marker: Marker,
        *,
        keep: int = RECORDS_ALONE,
        most: int = RECORDS_MOST,
        forgotten: Callable[[], bool] = lambda: False,
    ) -> Iterator[int]:
        """Fold the oldest records of committed batches, an object at a time: how many each one took.

        Safe at any time, from any process, beside a running writer, and stopped anywhere: a batch up to the marker's
        last settled one is decided for ever, in any older marker as well. The newest `keep` stay alone, for these
        are read; so does what is no whole record of the stream, and what the next start removes. `forgotten` says
        whether the stream has no marker any more: who removed it has listed what is to be deleted, perhaps before the
        last object was written.
        """
        settled = [
            key
            for key in self.keys()
            if marker.settled is not None and key <= marker.settled and marker.fate(key) is not Fate.NEVER
        ]
        old = self._not_folded(settled[: max(len(settled) - keep, 0)])
        for group in groups(old, lambda key: self._foldable(key, marker.stream), most=most):
            if not self._folded.write(group):
                log.warning(
                    "%d commit records of stream %r stay as they are: others stand where they belong",
                    len(group),
                    marker.stream,
                )
                return
            if forgotten():
                self._folded.delete(group)
                return
            self.delete(list(group))
            yield len(group)

    def _not_folded(self, keys: Sequence[BatchKey]) -> list[BatchKey]:
        """Those beyond the folded ones; journals that an interrupted fold had folded already are deleted."""
        through = max((s.last for s in self._folded.segments()), default=None)
        if through is None:
            return list(keys)
        folded = {key: data for key in keys if key <= through and (data := self._folded.get(key)) is not None}
        self.delete([key for key, data in folded.items() if self.store.get(self.path(key)) == data])
        return [key for key in keys if key > through]

    def _foldable(self, key: BatchKey, stream: str) -> bytes | None:
        data = self.store.get(self.path(key))
        journal = _journal(data)
        return data if data is None or (journal and (journal.stream, journal.key) == (stream, key)) else b""

    def after(
        self, settled: BatchKey | None, keys: Iterable[BatchKey], *, table_uuid: str, stream: str
    ) -> Iterator[Journal]:
        """Of `keys`, whole journals of this stream and table that are later than the last committed one, in order."""
        for key in keys:
            if settled is not None and key <= settled:
                continue
            journal = self.entry(key, table_uuid=table_uuid, stream=stream)
            if isinstance(journal, Journal):
                yield journal

    def delete(self, keys: list[BatchKey]) -> None:
        self.store.delete([self.path(key) for key in keys])


def _journal(data: bytes | None) -> Journal | None:
    return None if data is None else Journal.from_bytes(data)


def key_of(path: str) -> BatchKey | None:
    """The batch whose journal stands at a path; None for what is not ours."""
    epoch, dash, batch = path.rsplit("/", 1)[-1].removesuffix(".json").partition("-")
    return BatchKey(int(epoch), int(batch)) if dash and epoch.isdigit() and batch.isdigit() else None
