"""Rows of a task on their way to files: gathered by partition value, in bounded memory, into few and large files."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO

from frazil.ingest.contract import StagedFile, Target, TargetTable
from frazil.ingest.parquet import FileLayout, ParquetFile, partition_bytes
from frazil.ingest.split import sort, split

BUFFER_BYTES = 256 * 2**20
"""Arrow bytes that a task's tables may hold in memory before the largest partition value is written out."""
FIRST_GUESS_BYTES_PER_BYTE = 3.0
"""Arrow bytes per Parquet byte, until the first write has shown it."""

PartitionKey = tuple[str | None, ...]


@dataclass
class _Gathered:
    """One partition value: rows in memory, and the file that the earlier ones went to."""

    values: tuple[Any, ...]
    rows: list[pa.Table] = field(default_factory=list)
    bytes: int = 0
    file: ParquetFile | None = None


class TableWriter:
    """Writes a task's rows of one table.

    A second file for a partition value is begun only when the first has reached the target size. With a sort order,
    rows wait in memory until they fill a file or memory is short, so that a file is one sorted run if it can be.
    """

    def __init__(
        self,
        table: TargetTable,
        target: Target,
        *,
        io: FileIO,
        file_name: Callable[[], str],
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._layout = FileLayout.of(table, target)
        self._folder = table.folder
        self._target_bytes = table.target_file_bytes
        self._io = io
        self._file_name = file_name
        self._buffer_bytes = buffer_bytes
        self._gathered: dict[PartitionKey, _Gathered] = {}
        self._held = 0
        self._expansion = FIRST_GUESS_BYTES_PER_BYTE
        self._staged: list[StagedFile] = []

    @property
    def layout(self) -> FileLayout:
        return self._layout

    def add(self, rows: pa.Table) -> None:
        """Take rows of the table's schema, in any order of partitions."""
        for part in split(rows, self._layout.schema, self._layout.spec):
            key = partition_bytes(self._layout, part.values)
            gathered = self._gathered.setdefault(key, _Gathered(part.values))
            size = part.rows.nbytes
            gathered.rows.append(part.rows)
            gathered.bytes += size
            self._held += size
            if gathered.bytes >= self._enough():
                self._flush(gathered)
        while self._held > self._buffer_bytes:
            self._flush(max(self._gathered.values(), key=lambda g: g.bytes))

    def finish(self) -> list[StagedFile]:
        """Write what is left and close every file."""
        for gathered in self._gathered.values():
            self._flush(gathered)
            if gathered.file is not None:
                self._close(gathered, gathered.file)
        return self._staged

    def abort(self) -> None:
        """Remove every file of this writer, as far as that can be done now; the sweeper finds the rest."""
        for gathered in self._gathered.values():
            if gathered.file is not None:
                with contextlib.suppress(Exception):
                    gathered.file.remove()
        for staged in self._staged:
            with contextlib.suppress(Exception):
                self._io.delete(staged.path)

    def _enough(self) -> float:
        """Arrow bytes of one partition value that are worth a write: a row group, or with a sort order a file."""
        file_bytes = self._target_bytes * self._expansion
        if self._layout.order.is_unsorted:
            return min(self._layout.row_group_bytes, file_bytes)
        return file_bytes

    def _flush(self, gathered: _Gathered) -> None:
        if not gathered.rows:
            return
        rows = sort(pa.concat_tables(gathered.rows), self._layout.schema, self._layout.order)
        if gathered.file is None:
            path = f"{self._folder}/{self._file_name()}"
            gathered.file = ParquetFile(self._io, path, self._layout, gathered.values)
        before = gathered.file.bytes
        gathered.file.write(rows)
        self._expansion = gathered.bytes / max(1, gathered.file.bytes - before)
        self._held -= gathered.bytes
        gathered.rows, gathered.bytes = [], 0
        if gathered.file.bytes >= self._target_bytes:
            self._close(gathered, gathered.file)

    def _close(self, gathered: _Gathered, file: ParquetFile) -> None:
        self._staged.append(file.close())
        gathered.file = None


def file_namer(task: int, attempt: int) -> Callable[[], str]:
    """`<task>-<attempt>-<uuid>.parquet`: an attempt's files are known by their name."""
    return lambda: f"{task:05d}-{attempt}-{uuid.uuid4()}.parquet"
