"""The journal: one durable object per batch, written before the commit. After a crash, the next epoch commits the batch
if it starts at the marker's offsets, and discards it otherwise. A committed batch's journal is its commit record, which
the snapshot's summary names. `fold` packs old commit records.
"""

from __future__ import annotations

import heapq
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from pyiceberg.table import Table

from frazil.commit.dead_letter_counts import Reasons, reasons_from_json, reasons_json
from frazil.commit.folded_records import MAX_SEGMENT_RECORDS, FoldedRecords, split_records
from frazil.commit.marker import NO_TRANSACTION, BatchKey, LastTransaction, Marker, flatten_topics, nest_by_topic
from frazil.ingest.contract import RangeProgress, StagedFile, Target, is_routed
from frazil.offsets.spans import Offsets, SourceIdentity, TopicPartition
from frazil.table.object_store import ObjectStore
from frazil.table.storage import open_store
from frazil.table.tables import state_location

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MIN_UNFOLDED_RECORDS = 1_024
"""Number of the newest commit records that stay unfolded, because audits and health checks read them."""
VOID = json.dumps({"format": FORMAT_VERSION, "void": True}).encode()
"""The content that closes a batch's key. The batch can then never be committed."""


NO_DEAD_LETTERS = BatchKey(0, 0)


class RuleHashes(NamedTuple):
    """Hashes of the declared rules for rows; empty if audits compare no values."""

    columns: Mapping[str, str] = {}
    deciding: str = ""
    """Hash of the rules that apply to whole rows: keys, order and deletes."""

    @classmethod
    def from_json(cls, columns: Mapping[str, str], deciding: str) -> RuleHashes:
        by_table = {name: rules for name, rules in columns.items() if name}  # earlier versions stored `deciding` there
        return cls(by_table, deciding or columns.get("", ""))


NO_RULES = RuleHashes()


class BatchCost(NamedTuple):
    """The cost of one batch's tasks, and of the writer since its previous batch."""

    cpu_ms: int = 0
    """CPU (ms) of the tasks, the writer's process and its JVM. Streams of an application share process and JVM."""
    writes: int = 0
    """Requests to object storage that write or list objects."""
    reads: int = 0

    def summary(self) -> dict[str, str]:
        """Return the summary entries. Iceberg's own key `added-files-size` has the written bytes."""
        return {
            "frazil.cpu-ms": str(self.cpu_ms),
            "frazil.storage-writes": str(self.writes),
            "frazil.storage-reads": str(self.reads),
        }


@dataclass(frozen=True)
class Journal:
    stream: str
    key: BatchKey
    table_uuid: str
    created_at_ms: int
    source: SourceIdentity
    progress: tuple[RangeProgress, ...]
    files: tuple[StagedFile, ...]
    newest_dead_letters: BatchKey
    """The last batch with dead letters at the time of staging, or `NO_DEAD_LETTERS`."""
    idle: frozenset[TopicPartition]
    """Partitions without a recent record."""
    offsets_after: Offsets
    """Each partition's next offset after this batch."""
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The leader epochs of the records before `offsets_after`, if known."""
    transaction: LastTransaction = NO_TRANSACTION
    """The last transaction before `offsets_after`, if batches have whole transactions."""
    windows: Mapping[int, int] | None = None
    """Number of rows by window start (us since 1970); None if the rows were not counted."""
    partitions: int | None = None
    """Number of table partitions that each task wrote, summed over tasks; None without a shuffle."""
    with_ignored: int = 0
    """Number of records that have fields without a column, if the table may evolve."""
    without_columns: int = 0
    """Number of records that fill no column."""
    cast: int = 0
    other_events: int = 0
    """Number of events that change no row; see `StageResult.other_events`."""
    cost: BatchCost | None = None
    reasons: Reasons = field(default_factory=dict)
    """The dead letters by error class, without the dead letters in `accepted`."""
    accepted: Reasons = field(default_factory=dict)
    """The dead letters that an operator accepted. The circuit breaker, and alerts on the rate, ignore them."""
    rules: RuleHashes = NO_RULES
    """`hash_rules` of the batch. Audits compare a value only if its column's rules are still the same."""

    @property
    def records(self) -> int:
        return sum(p.records for p in self.progress)

    @property
    def rejected(self) -> int:
        return sum(p.rejected for p in self.progress)

    @property
    def dropped(self) -> int:
        return sum(p.dropped for p in self.progress)

    @property
    def future_rows(self) -> int:
        """Number of rows whose event time is too far in the future to advance the watermark."""
        return sum(p.future for p in self.progress)

    def staged_for(self, target: Target) -> tuple[StagedFile, ...]:
        return self._files_by_target.get(target, ())

    @property
    def routed(self) -> frozenset[Target]:
        return frozenset(filter(is_routed, self._files_by_target))

    def staged_in(self, folder: str) -> tuple[StagedFile, ...]:
        """Return the files in a table's folder of this batch. The table may have had another name in the batch."""
        return self._files_by_folder.get(bare_path(folder), ())

    @cached_property
    def _files_by_target(self) -> Mapping[Target, tuple[StagedFile, ...]]:
        return _group_files(self.files, lambda file: file.target)

    @cached_property
    def _files_by_folder(self) -> Mapping[str, tuple[StagedFile, ...]]:
        return _group_files(self.files, lambda file: bare_path(file.path).rpartition("/")[0])

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
                "progress": [p.to_json() for p in self.progress],
                "files": [f.to_json() for f in self.files],
                "letters-seen": self.newest_dead_letters,
                "idle": nest_by_topic(dict.fromkeys(self.idle, 1)),
                "offsets-after": nest_by_topic(self.offsets_after),
                "leader-epochs": nest_by_topic(self.leader_epochs),
                **({"transaction": self.transaction} if self.transaction.id else {}),
                "windows": None if self.windows is None else dict(sorted(self.windows.items())),
                "partitions": self.partitions,
                **({"with-ignored": self.with_ignored} if self.with_ignored else {}),
                **({"without-columns": self.without_columns} if self.without_columns else {}),
                **({"cast": self.cast} if self.cast else {}),
                **({"other-events": self.other_events} if self.other_events else {}),
                **({"cost": self.cost} if self.cost else {}),
                **({"reasons": reasons_json(self.reasons)} if self.reasons else {}),
                **({"accepted": reasons_json(self.accepted)} if self.accepted else {}),
                **({"column-rules": dict(self.rules.columns)} if self.rules.columns else {}),
                **({"deciding-rules": self.rules.deciding} if self.rules.deciding else {}),
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Journal | None:
        """Parse a journal; None for missing, other or incomplete objects, and for newer formats."""
        try:
            raw = json.loads(data or b"")
            return cls._from_json(raw) if raw["format"] == FORMAT_VERSION else None
        except (ValueError, KeyError, TypeError):
            return None

    @classmethod
    def _from_json(cls, raw: Mapping[str, Any]) -> Journal:
        windows = raw.get("windows")
        return cls(
            stream=raw["stream"],
            key=BatchKey(raw["epoch"], raw["batch"]),
            table_uuid=raw["table-uuid"],
            created_at_ms=raw["created-at-ms"],
            source=SourceIdentity(raw["cluster-id"], raw["topic-ids"]),
            progress=tuple(RangeProgress(**p) for p in raw["progress"]),
            files=tuple(StagedFile.from_json(f) for f in raw["files"]),
            newest_dead_letters=BatchKey(*raw["letters-seen"]),
            idle=frozenset(flatten_topics(raw["idle"])),
            offsets_after=flatten_topics(raw["offsets-after"]),
            leader_epochs=flatten_topics(raw.get("leader-epochs", {})),
            transaction=LastTransaction(*raw.get("transaction", ())),
            windows=None if windows is None else {int(start): rows for start, rows in windows.items()},
            partitions=raw.get("partitions"),
            with_ignored=raw.get("with-ignored", 0),
            without_columns=raw.get("without-columns", 0),
            cast=raw.get("cast", 0),
            other_events=raw.get("other-events", 0),
            cost=BatchCost(*raw["cost"][:3]) if raw.get("cost") else None,
            reasons=reasons_from_json(raw.get("reasons", {})),
            accepted=reasons_from_json(raw.get("accepted", {})),
            rules=RuleHashes.from_json(raw.get("column-rules", {}), raw.get("deciding-rules", "")),
        )


class UnusableJournal(Enum):
    """Why the object at a batch's key cannot be used as the batch's journal."""

    ABSENT = "nothing"
    VOID = "the note that the batch must never be committed"
    FOREIGN = "an incomplete object, or the journal of another stream or batch"
    OTHER_TABLE = "the stream's journal for another table that has the same folder"


class JournalStore:
    """The journals of one stream, at `<table location>/_frazil/<stream>/journal/<epoch>-<batch>.json`. A journal is
    written once. A later epoch may close its key with `void`.
    """

    def __init__(self, store: ObjectStore, state_location: str) -> None:
        self.store = store
        self.state = state_location
        self._folder = f"{state_location}/journal"
        self._folded = FoldedRecords(store, state_location)

    @classmethod
    def of_table(cls, table: Table, stream: str) -> JournalStore:
        return cls(open_store(table.location(), table.io.properties), state_location(table, stream))

    def path(self, key: BatchKey) -> str:
        return f"{self._folder}/{key.epoch:08d}-{key.batch:08d}.json"

    def put(self, journal: Journal) -> bool:
        """Write the journal durably. Returns False if another writer has closed its key."""
        self.store.sync_files([f.path for f in journal.files])
        path, data = self.path(journal.key), journal.to_bytes()
        # If the client lost the response and repeated the put, the object is already there.
        return self.store.put_if_absent(path, data) or self.store.get(path) == data

    def void_if_absent(self, key: BatchKey) -> bool:
        """Close a key without a journal, so that suspended writers cannot use it. Returns whether the key is closed."""
        return self.store.put_if_absent(self.path(key), VOID) or self.store.get(self.path(key)) == VOID

    def void(self, key: BatchKey) -> None:
        self.store.put(self.path(key), VOID)

    def entry(self, key: BatchKey, *, table_uuid: str, stream: str) -> Journal | UnusableJournal:
        """Return the batch's journal, or the reason why it cannot be used for this stream, table and key."""
        data = self._load(self.path(key))
        if data is None:
            return UnusableJournal.ABSENT
        if data == VOID:
            return UnusableJournal.VOID
        journal = Journal.from_bytes(data)
        if journal is None or (journal.stream, journal.key) != (stream, key):
            return UnusableJournal.FOREIGN
        return journal if journal.table_uuid == table_uuid else UnusableJournal.OTHER_TABLE

    def get(self, key: BatchKey) -> Journal | None:
        return self.read(self.path(key))

    def read(self, path: str) -> Journal | None:
        return Journal.from_bytes(self._load(path))

    def _load(self, path: str) -> bytes | None:
        data = self.store.get(path)
        if data is None and (key := parse_key(path)) is not None:
            data = self._folded.get(key)
        return data

    def keys(self) -> list[BatchKey]:
        """Return the keys of the journals that are not folded, in order."""
        return sorted(filter(None, (parse_key(f.path) for f in self.store.list_files(self._folder))))

    def oldest(self, keys: Sequence[BatchKey]) -> BatchKey | None:
        return min([*keys[:1], *(s.first for s in self._folded.segments())], default=None)

    def paths_of_other_tables(self, table_uuid: str) -> set[str]:
        """Return the paths of commit records of another table that has, or had, the same folder."""
        unfolded = {self.path(key): (self.store.get(self.path(key)),) for key in self.keys()}
        folded = {segment.path: tuple(self._folded.read(segment).values()) for segment in self._folded.segments()}
        return {
            path
            for path, records in (unfolded | folded).items()
            if any((journal := Journal.from_bytes(data)) and journal.table_uuid != table_uuid for data in records)
        }

    def highest_epoch(self) -> int:
        epochs = [*(key.epoch for key in self.keys()), *(s.last.epoch for s in self._folded.segments())]
        return max(epochs, default=0)

    def records(
        self, *, newest_first: bool = False, below: BatchKey | None = None, table_uuid: object = None
    ) -> Iterator[Journal]:
        unfolded: list[tuple[BatchKey, bytes | None]] = [(key, None) for key in self.keys()]
        # Folded records are listed last: a journal that is folded in the meantime is in both lists, and counts once.
        folded = self._folded.items(newest_first=newest_first)
        objects = heapq.merge(
            reversed(unfolded) if newest_first else unfolded, folded, key=itemgetter(0), reverse=newest_first
        )
        for key, copies in groupby(objects, key=itemgetter(0)):
            if below is not None and key >= below:
                continue
            data = next((data for _, data in copies if data is not None), None)
            journal = self.get(key) if data is None else Journal.from_bytes(data)
            if journal and (table_uuid is None or journal.table_uuid == str(table_uuid)):
                yield journal

    def fold(
        self,
        marker: Marker,
        *,
        keep: int = MIN_UNFOLDED_RECORDS,
        limit: int = MAX_SEGMENT_RECORDS,
        forgotten: Callable[[], bool] = lambda: False,
    ) -> Iterator[int]:
        """Fold the oldest commit records, and yield the number of records in each new object.

        Folds settled batches only, except the last `keep`. Safe at any time, from any process. If `forgotten` returns
        True after an object is written, deletes this object, because `forget` may have missed it.
        """
        settled = list(filter(marker.has_committed, self.keys()))
        old = self._delete_folded(settled[: max(len(settled) - keep, 0)])
        for group in split_records(old, lambda key: self._read_to_fold(key, marker.stream), limit=limit):
            if not self._folded.write(group):
                log.warning(
                    "cannot fold %d commit records of stream %r: an object with the same name contains other records",
                    len(group),
                    marker.stream,
                )
                return
            if forgotten():
                self._folded.delete(group)
                return
            self.delete(list(group))
            yield len(group)

    def _delete_folded(self, keys: Sequence[BatchKey]) -> list[BatchKey]:
        """Delete journals that an interrupted fold has already stored. Return the keys that are still to be folded."""
        through = max((s.last for s in self._folded.segments()), default=None)
        if through is None:
            return list(keys)
        folded = {key: data for key in keys if key <= through and (data := self._folded.get(key)) is not None}
        self.delete([key for key, data in folded.items() if self.store.get(self.path(key)) == data])
        return [key for key in keys if key > through]

    def _read_to_fold(self, key: BatchKey, stream: str) -> bytes | None:
        """Return a journal's content; empty if it must not be folded, None if it is missing."""
        data = self.store.get(self.path(key))
        journal = Journal.from_bytes(data)
        return data if data is None or (journal and (journal.stream, journal.key) == (stream, key)) else b""

    def after(
        self, settled: BatchKey | None, keys: Iterable[BatchKey], *, table_uuid: str, stream: str
    ) -> Iterator[Journal]:
        for key in keys:
            if settled is not None and key <= settled:
                continue
            journal = self.entry(key, table_uuid=table_uuid, stream=stream)
            if isinstance(journal, Journal):
                yield journal

    def delete(self, keys: list[BatchKey]) -> None:
        self.store.delete([self.path(key) for key in keys])


def later_journals(marker: Marker, journals: Sequence[Journal]) -> list[Journal]:
    """Return the journals of batches that a routed table with this marker is missing."""
    return [journal for journal in journals if marker.settled is None or journal.key > marker.settled]


def parse_key(path: str) -> BatchKey | None:
    epoch, dash, batch = path.rsplit("/", 1)[-1].removesuffix(".json").partition("-")
    return BatchKey(int(epoch), int(batch)) if dash and epoch.isdigit() and batch.isdigit() else None


def _group_files(files: Iterable[StagedFile], key: Callable[[StagedFile], str]) -> Mapping[str, tuple[StagedFile, ...]]:
    groups: dict[str, list[StagedFile]] = {}
    for file in files:
        groups.setdefault(key(file), []).append(file)
    return {name: tuple(group) for name, group in groups.items()}


def bare_path(path: str) -> str:
    """Return a path without its scheme, so that paths of frazil, Spark and listings can be compared."""
    return re.sub(r"^file:(//)?(?=/)", "", path)
