"""Buffers a task's rows by partition, in limited memory, to write few large files."""

from __future__ import annotations

import contextlib
import copy
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io

from frazil.ingest.contract import PartitionKey, StageContext, StagedFile, Target, TargetTable
from frazil.ingest.parquet import (
    MAX_SAMPLED_ROWS,
    Encodings,
    FileLayout,
    ParquetFile,
    choose_encodings,
    encode_partition,
)
from frazil.ingest.partitioning import sort_rows, split_by_partition

MAX_BUFFER_BYTES = 256 * 2**20
"""Maximum Arrow bytes in a writer's buffers. Above this, the partition with the largest buffer is written."""
MAX_OPEN_BYTES = 512 * 2**20
"""Maximum memory (bytes) of a writer's open files. Above this, the least recently written file is closed."""
INITIAL_EXPANSION = 3.0
"""Estimated Arrow bytes per Parquet byte, until the first write measures this ratio."""
MAX_MERGED_BYTES = 2**20
MAX_UNSPLIT_BYTES = 64 * 2**20
MIN_PART_ROWS = 512
"""Minimum average number of rows per partition to split an added table at once."""


@dataclass
class _Partition:
    """A partition's buffered rows, and the open file with its earlier rows."""

    values: tuple[Any, ...]
    rows: list[pa.Table] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    bytes: int = 0
    file: ParquetFile | None = None
    retained: int = 0

    def add(self, rows: pa.Table) -> None:
        """Buffer rows. Merges small tables of similar size, because each table has kilobytes of overhead."""
        self._append(rows)
        while (alike := self._count_mergeable()) >= 8:
            merged = pa.concat_tables(self.rows[-alike:]).combine_chunks()
            self.bytes -= sum(self.sizes[-alike:])
            del self.rows[-alike:], self.sizes[-alike:]
            self._append(merged)

    def _append(self, rows: pa.Table) -> None:
        size = buffered_bytes(rows)
        self.rows.append(rows)
        self.sizes.append(size)
        self.bytes += size

    def _count_mergeable(self) -> int:
        """Count the tables at the end of the list that are small, and at most twice as large as the last table."""
        max_bytes = min(2 * self.sizes[-1], MAX_MERGED_BYTES)
        return sum(1 for _ in takewhile(lambda size: size <= max_bytes, reversed(self.sizes)))


def buffered_bytes(rows: pa.Table) -> int:
    """Return the bytes that a table keeps in memory, including overhead and unused parts of its buffers."""
    buffers: int = rows.get_total_buffer_size()
    return buffers + 512 * len(rows.column_names)  # about 512 bytes for each column


class TableWriter:
    """Writes a task's rows of one table.

    A partition gets a second file only if the first reached the target size, or if memory is short. With a sort order,
    rows are buffered until they fill a file, unless memory is short.
    """

    def __init__(  # noqa: PLR0913 - tests set the two limits
        self,
        table: TargetTable,
        target: Target,
        *,
        io: FileIO,
        file_name: Callable[[], str],
        buffer_bytes: int = MAX_BUFFER_BYTES,
        open_bytes: int = MAX_OPEN_BYTES,
    ) -> None:
        self.layout = FileLayout.of(table, target)
        self._folder = table.folder
        self._target_bytes = table.target_file_bytes
        self._io: FileIO | None = io
        self._file_name = file_name
        self._buffer_bytes = buffer_bytes
        self._unsplit_bytes = min(MAX_UNSPLIT_BYTES, buffer_bytes // 4)
        self._open_bytes = open_bytes
        self._expansion = INITIAL_EXPANSION
        self._parts = 0
        self._encodings = Encodings([], {})
        self._sampled = 0
        self._reset()

    def _reset(self) -> None:
        self._gathered: dict[PartitionKey, _Partition] = {}
        self._unsplit: list[pa.Table] = []
        self._unsplit_held = 0
        self.held = 0
        self._open: dict[int, _Partition] = {}  # the key is `id(gathered)`; least recently written first
        self._retained = 0
        self._staged: list[StagedFile] = []

    def release(self) -> None:
        """Write the rows of the partition with the largest buffer, and close its file."""
        self._split()
        largest = max(self._gathered.values(), key=lambda g: g.bytes, default=None)
        if largest is not None:
            self._flush(largest)
            if largest.file is not None:
                self._close(largest, largest.file)

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._unsplit.append(rows)
            self._unsplit_held += (size := buffered_bytes(rows))
            self.held += size
        if rows.num_rows >= MIN_PART_ROWS * self._parts or self._unsplit_held >= self._unsplit_bytes:
            self._split()
        while self.held > self._buffer_bytes:
            self._flush(max(self._gathered.values(), key=lambda g: g.bytes))

    def _split(self) -> None:
        if not self._unsplit:
            return
        rows = pa.concat_tables(self._unsplit).combine_chunks()
        self.held -= self._unsplit_held
        self._unsplit, self._unsplit_held = [], 0
        self._parts = 0
        for part in split_by_partition(rows, self.layout.schema, self.layout.spec):
            self._parts += 1
            key = encode_partition(self.layout, part.values)
            gathered = self._gathered.setdefault(key, _Partition(part.values))
            self.held -= gathered.bytes
            gathered.add(part.rows)
            self.held += gathered.bytes
            if gathered.bytes >= self._min_write_bytes():
                self._flush(gathered)

    def dry_write(self, rows: pa.Table) -> None:
        """Write these rows in memory only. Raises the same errors as `add` and `finish`."""
        trial = copy.copy(self)
        trial._io = None
        trial._reset()
        trial.add(rows)
        trial.finish()

    def finish(self) -> list[StagedFile]:
        self._split()
        for gathered in self._gathered.values():
            self._flush(gathered)
            if gathered.file is not None:
                self._close(gathered, gathered.file)
        return self._staged

    def abort(self) -> None:
        """Remove every file of this writer. `frazil.commit.sweep` removes files that cannot be removed now."""
        for gathered in self._gathered.values():
            if gathered.file is not None:
                with contextlib.suppress(Exception):
                    gathered.file.remove()
        for staged in self._staged:
            with contextlib.suppress(Exception):
                if self._io:
                    self._io.delete(staged.path)

    def _min_write_bytes(self) -> float:
        """Return the minimum Arrow bytes of a write: a row group or, if sorted, a whole file."""
        file_bytes = self._target_bytes * self._expansion
        if self.layout.order.is_unsorted:
            return min(self.layout.row_group_bytes, file_bytes)
        return file_bytes

    def _flush(self, gathered: _Partition) -> None:
        if not gathered.rows:
            return
        rows = sort_rows(pa.concat_tables(gathered.rows), self.layout.schema, self.layout.order)
        if gathered.file is None:
            path = f"{self._folder}/{self._file_name()}"
            if self._sampled < MAX_SAMPLED_ROWS and rows.num_rows > 2 * self._sampled:
                self._sampled = rows.num_rows
                self._encodings = choose_encodings(rows, allows_v2=self.layout.allows_v2)
            gathered.file = ParquetFile(self._io, path, self.layout, gathered.values, encodings=self._encodings)
        old_bytes = gathered.file.bytes
        gathered.file.write(rows)
        self._expansion = gathered.bytes / max(1, gathered.file.bytes - old_bytes)
        self.held -= gathered.bytes
        self._set_retained(gathered, self.layout.retained_bytes(gathered.bytes))
        gathered.rows, gathered.sizes, gathered.bytes = [], [], 0
        if gathered.file.bytes >= self._target_bytes:
            self._close(gathered, gathered.file)
        while self._retained > self._open_bytes:
            oldest = next(iter(self._open.values()))
            assert oldest.file
            self._close(oldest, oldest.file)

    def _set_retained(self, gathered: _Partition, size: int) -> None:
        """Store the memory (bytes) of the partition's open file; 0 without an open file."""
        self._retained += size - gathered.retained
        gathered.retained = size
        self._open.pop(id(gathered), None)
        if size:
            self._open[id(gathered)] = gathered

    def _close(self, gathered: _Partition, file: ParquetFile) -> None:
        self._staged.append(file.close())
        gathered.file = None
        self._set_retained(gathered, 0)


def file_namer(task: int, attempt: int) -> Callable[[], str]:
    return lambda: f"{task:05d}-{attempt}-{uuid.uuid4()}.parquet"


def open_writer(context: StageContext, target: Target, file_name: Callable[[], str]) -> TableWriter:
    table = context.targets[target]
    return TableWriter(table, target, io=load_file_io(dict(table.io), location=table.folder), file_name=file_name)
