"""Folded commit records: one immutable object for a thousand of them, so that a stream leaves few objects behind.

A journal is a separate object while its batch is undecided, because its key is the fence. Once later batches are
committed, only audits and resets read it. It then goes with its neighbours into
`<state>/records/<first>_<last>.jsonl.gz`: a line with the format, then the journals unchanged and in order.

Folding needs no fence: an object is written if absent, and read back, before its journals are deleted. So every record
is in at least one place, whatever is killed or runs twice. Readers try the journal first, then the folded records; a
record in both places counts once.
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
MAX_RECORDS = 1_024
MAX_BYTES = 16 * 1024**2
"""Maximum bytes of records in an object, before compression: reading one record loads them all."""
READS_AT_ONCE = 8

_NAME = re.compile(r"(\d{8,})-(\d{8,})_(\d{8,})-(\d{8,})\.jsonl\.gz")

Records = dict[BatchKey, bytes]


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """An object, as its name describes it."""

    first: BatchKey
    last: BatchKey
    path: str = field(compare=False)

    @classmethod
    def at(cls, path: str) -> Segment | None:
        """Parse a path; None if it is not a segment's."""
        found = _NAME.fullmatch(path.rsplit("/", 1)[-1])
        if found is None:
            return None
        numbers = [int(text) for text in found.groups()]
        return cls(BatchKey(*numbers[:2]), BatchKey(*numbers[2:]), path)


class FoldedRecords:
    """The folded records of one stream.

    Caches the last object read, because neighbours are read one after the other.
    """

    def __init__(self, store: ObjectStore, state: str) -> None:
        self._store = store
        self._folder = f"{state}/records"
        self._known: tuple[Segment, ...] = ()
        self._last: tuple[str, Records] = ("", {})

    def segments(self) -> tuple[Segment, ...]:
        """Return the current objects, oldest first."""
        found = (Segment.at(file.path) for file in self._store.list_files(self._folder))
        self._known = tuple(sorted(filter(None, found)))
        return self._known

    def get(self, key: BatchKey) -> bytes | None:
        """Return a record; None if it is not folded."""
        found = self._find(key, self._known)
        return self._find(key, self.segments()) if found is None else found

    def _find(self, key: BatchKey, segments: Sequence[Segment]) -> bytes | None:
        for segment in segments:
            if segment.first <= key <= segment.last and (data := self.read(segment).get(key)) is not None:
                return data
        return None

    def items(self, *, newest_first: bool) -> Iterator[tuple[BatchKey, bytes]]:
        """Yield all records by key, once each: objects of concurrent folds may overlap."""
        segments = self.segments()
        last: BatchKey | None = None
        for segment in sorted(segments, key=lambda s: s.last, reverse=True) if newest_first else segments:
            records = self.read(segment)
            for key in reversed(records) if newest_first else records:
                if last is None or (key < last if newest_first else key > last):
                    yield key, records[key]
                    last = key

    def read(self, segment: Segment) -> Records:
        """Return the records of one object in order; empty if it is missing or damaged."""
        if self._last[0] != segment.path:
            data = self._store.get(segment.path)
            self._last = (segment.path, {} if data is None else _unpacked(data, segment.path))
        return self._last[1]

    def write(self, records: Records) -> bool:
        """Write an object with records in key order; False if an object of that name has other records."""
        path = self._path(records)
        self._store.put_if_absent(path, _packed(records))
        stored = self._store.get(path)
        return stored is not None and _unpacked(stored, path) == records

    def delete(self, records: Records) -> None:
        """Undo `write`."""
        self._store.delete([self._path(records)])

    def _path(self, records: Records) -> str:
        first, last = next(iter(records)), next(reversed(records))
        return f"{self._folder}/{_text(first)}_{_text(last)}.jsonl.gz"


def _text(key: BatchKey) -> str:
    return f"{key.epoch:08d}-{key.batch:08d}"


def _packed(records: Records) -> bytes:
    head = {"format": FORMAT_VERSION, "keys": list(records)}
    lines = [json.dumps(head, separators=(",", ":")).encode(), *records.values()]
    # Without a time, so that equal records give equal bytes.
    return gzip.compress(b"\n".join(lines), compresslevel=6, mtime=0)


def _unpacked(data: bytes, path: str) -> Records:
    try:
        first, *lines = gzip.decompress(data).split(b"\n")
        head = json.loads(first)
        keys = [BatchKey(*key) for key in head["keys"]] if head["format"] == FORMAT_VERSION else None
        if keys is not None:
            return dict(zip(keys, lines, strict=True))
        reason = f"its format is {head['format']}, and this frazil reads {FORMAT_VERSION}"
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        reason = repr(error)
    log.warning("the commit records in %s cannot be read, and count as missing: %s", path, reason)
    return {}


def groups(
    keys: Sequence[BatchKey], read: Callable[[BatchKey], bytes | None], *, limit: int = MAX_RECORDS
) -> Iterator[Records]:
    """Group journals, in order, into groups that fill an object. Leaves out an incomplete last group and empty
    journals.

    If `read` returns None, another process has folded the journal, and the groups end.
    """
    group: Records = {}
    size = 0
    with ThreadPoolExecutor(READS_AT_ONCE, "fold") as pool:
        # At most one read ahead for each thread: records of many files or windows have megabytes.
        for start in range(0, len(keys), READS_AT_ONCE):
            part = keys[start : start + READS_AT_ONCE]
            for key, data in zip(part, pool.map(read, part), strict=True):
                if data is None:
                    return
                if data:
                    group[key] = data
                    size += len(data)
                if len(group) >= limit or size >= MAX_BYTES:
                    yield group
                    group, size = {}, 0
