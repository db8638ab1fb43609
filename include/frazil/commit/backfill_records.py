"""Stores the objects of backfills next to a stream's journals: chunk journals, and one record for each published
backfill. They show the audit which rows of a backfill must be in a table. Backfills have no commit records.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from frazil.commit.backfill_marker import BackfillMarker, BackfillState, read_backfill
from frazil.commit.history import Period, ancestors_and_older_snapshots
from frazil.commit.journal import Journal, JournalStore
from frazil.commit.staging_targets import list_targets, object_path
from frazil.errors import FrazilError
from frazil.ingest.contract import Target
from frazil.offsets.spans import TopicPartition


@dataclass(frozen=True, slots=True)
class BackfillRecord:
    """The record of one backfill, stored in `_frazil/<stream>/backfills/<id>.json` before the backfill is published."""

    backfill: BackfillMarker
    late: Mapping[int, int]
    """Number of late rows by window start, in microseconds since 1970."""
    replayed: Mapping[TopicPartition, BitMap64] = field(default_factory=dict)
    """The offsets whose dead letters became rows; empty unless the backfill is a replay."""
    routed: Mapping[Target, Mapping[TopicPartition, BitMap64]] = field(default_factory=dict)
    """The part of `replayed` whose rows are in routed tables."""

    @property
    def selects(self) -> bool:
        """Whether the backfill read only some records, by event time or file."""
        return any(self.backfill.request.get(name) for name in ("from-event-time", "to-event-time", "files"))

    def to_bytes(self) -> bytes:
        raw: dict[str, Any] = {"backfill": self.backfill.to_json(), "late": self.late}
        if self.replayed:
            raw["replayed"] = _encode_offsets(self.replayed)
        if self.routed:
            raw["routed"] = {target: _encode_offsets(of) for target, of in self.routed.items()}
        return json.dumps(raw, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> BackfillRecord:
        raw: dict[str, Any] = json.loads(data)
        late = {int(begin): rows for begin, rows in raw["late"].items()}
        routed = {target: _decode_offsets(of) for target, of in raw.get("routed", {}).items()}
        return cls(BackfillMarker.from_json(raw["backfill"]), late, _decode_offsets(raw.get("replayed", ())), routed)


def _encode_offsets(offsets: Mapping[TopicPartition, BitMap64]) -> list[tuple[str, int, str]]:
    return [
        (topic, partition, base64.b64encode(found.serialize()).decode())
        for (topic, partition), found in sorted(offsets.items(), key=itemgetter(0))
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
    """Record that an operator discarded a published backfill's waiting rows for a removed routed table."""
    journals.store.put(object_path(_given_up_folder(journals, backfill_id), target), b"{}")


def list_given_up_targets(journals: JournalStore, backfill_id: str) -> set[Target]:
    return list_targets(journals.store, _given_up_folder(journals, backfill_id))


def _given_up_folder(journals: JournalStore, backfill_id: str) -> str:
    return f"{backfill_folder(journals, backfill_id)}/given-up"


def committed_chunks(journals: JournalStore, backfill: BackfillMarker) -> list[Journal]:
    own = backfill_journals(journals, backfill.id)
    return [journal for key in own.keys() if backfill.has_chunk(key) and (journal := own.get(key))]  # noqa: SIM118 - no mapping


def chunk_topic_ids(own_chunks: Iterable[Journal]) -> dict[str, str]:
    return {topic: i for journal in own_chunks for topic, i in journal.source.topic_ids.items()}


def published_records(
    journals: JournalStore, metadata: TableMetadata, stream: str, *, window: Period | None = None
) -> Iterator[BackfillRecord]:
    """Yield the records of published backfills. With `window`, only of those published to main in this period."""
    backfill = read_backfill(metadata.properties, stream)
    intended = backfill.id if backfill and backfill.state is not BackfillState.PUBLISHED else None
    paths: Iterable[str]
    if window is None:
        listed = [f.path for f in journals.store.list_files(backfills_folder(journals))]
        paths = [path for path in listed if path.endswith(".json") and path.rsplit("/", 2)[-2] == "backfills"]
    else:
        paths = _published_paths(metadata, stream, window)
    for path in paths:
        data = journals.store.get(path)
        record = BackfillRecord.from_bytes(data) if data else None
        if record and record.backfill.id != intended:
            yield record


def _published_paths(metadata: TableMetadata, stream: str, window: Period) -> Iterator[str]:
    for snapshot in ancestors_and_older_snapshots(metadata):
        summary = snapshot.summary
        if summary and summary.get("frazil.backfill-stream") == stream and snapshot.timestamp_ms in window:
            yield str(summary["frazil.commit-record"])
