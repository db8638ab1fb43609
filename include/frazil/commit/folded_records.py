"""Folds about a thousand commit records into one immutable object, `<state>/records/<first>_<last>.jsonl.gz`: a line
with format and keys, then the unchanged journals. The object is read back before the journals are deleted, so folding
needs no fence. Readers try the journal first.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from frazil.commit.marker import BatchKey
from frazil.table.object_store import ObjectStore

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MAX_SEGMENT_RECORDS = 1_024
MAX_SEGMENT_BYTES = 16 * 1024**2
"""Maximum uncompressed size of the records in one object. Reading one record loads the whole object."""
MAX_PARALLEL_READS = 8

_NAME = re.compile(r"(\d{8,})-(\d{8,})_(\d{8,})-(\d{8,})\.jsonl\.gz")

RecordsByKey = dict[BatchKey, bytes]


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """An object of folded records, as described by its name."""

    first: BatchKey
    last: BatchKey
    path: str = field(compare=False)

    @classmethod
    def parse(cls, path: str) -> Segment | None:
        match = _NAME.fullmatch(path.rsplit("/", 1)[-1])
        if match is None:
            return None
        numbers = [int(text) for text in match.groups()]
        return cls(BatchKey(*numbers[:2]), BatchKey(*numbers[2:]), path)


class FoldedRecords:
    """Reads and writes the folded commit records of one stream. Caches the last object."""

    def __init__(self, store: ObjectStore, state: str) -> None:
        self._store = store
        self._folder = f"{state}/records"
        self._known: tuple[Segment, ...] = ()
        self._last: tuple[str, RecordsByKey] = ("", {})

    def segments(self) -> tuple[Segment, ...]:
        parsed = (Segment.parse(file.path) for file in self._store.list_files(self._folder))
        self._known = tuple(sorted(filter(None, parsed)))
        return self._known

    def get(self, key: BatchKey) -> bytes | None:
        record = self._find(key, self._known)
        return self._find(key, self.segments()) if record is None else record

    def _find(self, key: BatchKey, segments: Sequence[Segment]) -> bytes | None:
        for segment in segments:
            if segment.first <= key <= segment.last and (data := self.read(segment).get(key)) is not None:
                return data
        return None

    def items(self, *, newest_first: bool) -> Iterator[tuple[BatchKey, bytes]]:
        """Yield each record once, in key order or newest first. Objects of concurrent folds may overlap."""
        segments = self.segments()
        last: BatchKey | None = None
        for segment in sorted(segments, key=lambda s: s.last, reverse=True) if newest_first else segments:
            records = self.read(segment)
            for key in reversed(records) if newest_first else records:
                if last is None or (key < last if newest_first else key > last):
                    yield key, records[key]
                    last = key

    def read(self, segment: Segment) -> RecordsByKey:
        """Return the records of one object in key order; empty if the object is missing or damaged."""
        if self._last[0] != segment.path:
            data = self._store.get(segment.path)
            self._last = (segment.path, {} if data is None else _decode_records(data, segment.path))
        return self._last[1]

    def write(self, records: RecordsByKey) -> bool:
        """Write records in key order as one object. Returns False if it already exists with other records."""
        path = self._path(records)
        head = {"format": FORMAT_VERSION, "keys": list(records)}
        lines = [json.dumps(head, separators=(",", ":")).encode(), *records.values()]
        # Without a timestamp, equal records produce equal bytes.
        self._store.put_if_absent(path, gzip.compress(b"\n".join(lines), compresslevel=6, mtime=0))
        stored = self._store.get(path)
        return stored is not None and _decode_records(stored, path) == records

    def delete(self, records: RecordsByKey) -> None:
        self._store.delete([self._path(records)])

    def _path(self, records: RecordsByKey) -> str:
        first, last = next(iter(records)), next(reversed(records))
        return f"{self._folder}/{_key_text(first)}_{_key_text(last)}.jsonl.gz"


def _key_text(key: BatchKey) -> str:
    return f"{key.epoch:08d}-{key.batch:08d}"


def _decode_records(data: bytes, path: str) -> RecordsByKey:
    try:
        first, *lines = gzip.decompress(data).split(b"\n")
        head = json.loads(first)
        keys = [BatchKey(*key) for key in head["keys"]] if head["format"] == FORMAT_VERSION else None
        if keys is not None:
            return dict(zip(keys, lines, strict=True))
        reason = f"their format is {head['format']}, but this version of frazil reads {FORMAT_VERSION}"
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        reason = repr(error)
    log.warning("the commit records in %s cannot be read, and count as missing: %s", path, reason)
    return {}


def split_records(
    keys: Sequence[BatchKey], read: Callable[[BatchKey], bytes | None], *, limit: int = MAX_SEGMENT_RECORDS
) -> Iterator[RecordsByKey]:
    """Yield groups of journals, each large enough for one object. Omits a last, partial group.

    Ends if `read` returns None.
    """
    group: RecordsByKey = {}
    size = 0
    with ThreadPoolExecutor(MAX_PARALLEL_READS, "fold") as pool:
        # Each thread reads at most one record ahead: records of many files or windows take megabytes.
        for start in range(0, len(keys), MAX_PARALLEL_READS):
            part = keys[start : start + MAX_PARALLEL_READS]
            for key, data in zip(part, pool.map(read, part), strict=True):
                if data is None:
                    return
                if data:
                    group[key] = data
                    size += len(data)
                if len(group) >= limit or size >= MAX_SEGMENT_BYTES:
                    yield group
                    group, size = {}, 0
