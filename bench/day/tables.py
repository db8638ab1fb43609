"""Two tables with the same data, written by the real committer. Only one of them will be maintained."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from frazil.commit.marker import BatchKey
from frazil.commit.sweep import batch_folder
from frazil.ingest.contract import RangeProgress, StagedFile, Target
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec
from tests.made_batches import MadeStream, Offsets

STREAM = """
name: {name}
source: {{topics: [ticks], bootstrap-servers: "127.0.0.1:1"}}
table: bench.{name}
schema: {{symbol: string not null, price: double not null, size: int not null, ts: timestamptz not null}}
event-time: ts
partition-by: [hour(ts)]
"""
BEGIN_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
HOUR_US = 3_600_000_000
SYMBOLS = np.array([f"SYM{number:03d}" for number in range(100)])


@dataclass
class ManyFiles(MadeStream):
    """Writes a file per commit and Kafka partition, as writers without a shuffle do."""

    staged: tuple[StagedFile, ...] = field(default=(), init=False)

    def write(self, table: Table, key: BatchKey, target: Target, offsets: Offsets) -> tuple[StagedFile, ...]:
        if target == "main":
            each = [MadeStream.write(self, table, key, target, {p: of}) for p, of in offsets.items()]
            self.staged = tuple(file for files in each for file in files)
            return self.staged
        return ()


@dataclass
class Linked(MadeStream):
    """Commits the batches of another stream, as hard links to its files."""

    source_of_files: ManyFiles | None = None

    def write(self, table: Table, key: BatchKey, target: Target, offsets: Offsets) -> tuple[StagedFile, ...]:  # noqa: ARG002
        if target != "main" or self.source_of_files is None:
            return ()
        folder = batch_folder(table, self.spec.name, key)
        return tuple(_linked(file, folder) for file in self.source_of_files.staged)


def _linked(file: StagedFile, folder: str) -> StagedFile:
    path = f"{folder}/{file.path.rsplit('/', 1)[-1]}"
    there = Path(path.removeprefix("file://"))
    there.parent.mkdir(parents=True, exist_ok=True)
    os.link(file.path.removeprefix("file://"), there)
    return dataclasses.replace(file, path=path)


@dataclass
class Day:
    """A simulated day. Each commit adds the next slice of event time to both tables."""

    folder: Path
    commits: int
    """Commits per hour."""
    files: int
    """Files per commit."""
    rows: int
    """Rows per file."""
    done: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(1)
        self.maintained = ManyFiles(self._spec("maintained"), now_ms(), partitions=self.files, columns=self._columns)
        self.unattended = Linked(
            self._spec("unattended"), now_ms(), partitions=self.files, source_of_files=self.maintained
        )
        self.streams: Sequence[MadeStream] = (self.maintained, self.unattended)
        for stream in self.streams:
            stream.begin()

    @property
    def rows_an_hour(self) -> int:
        return self.commits * self.files * self.rows

    def commit(self) -> tuple[float, ...]:
        """Commit the next batch to both tables. Return the milliseconds of each commit."""
        took = tuple(self._commit(stream) for stream in self.streams)
        self.done += 1
        return took

    def _commit(self, stream: MadeStream) -> float:
        stream.now_ms = now_ms()
        start, end = self.done * self.rows, (self.done + 1) * self.rows
        newest_us = self._begins_us(self.done + 1) - 1
        progress = [RangeProgress(stream.topic, p, start, end, self.rows, 0, newest_us) for p in range(self.files)]
        journal = stream.stage(progress, {p: np.arange(start, end) for p in range(self.files)}, {})
        committer = stream.committer or stream.begin()
        began = time.perf_counter()
        committer.commit(journal)
        return (time.perf_counter() - began) * 1000

    def _columns(self, rows: int) -> dict[str, pa.Array]:
        """Return one file's rows, ordered by time as in Kafka."""
        times = np.sort(self._random.integers(self._begins_us(self.done), self._begins_us(self.done + 1), rows))
        return {
            "symbol": pa.array(self._random.choice(SYMBOLS, rows)),
            "price": pa.array(self._random.normal(100, 10, rows).round(2)),
            "size": pa.array(self._random.integers(1, 1000, rows, np.int32)),
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
        }

    def _begins_us(self, commit: int) -> int:
        return BEGIN_US + commit * HOUR_US // self.commits

    def _spec(self, name: str) -> StreamSpec:
        path = self.folder / f"{name}.yaml"
        path.write_text(STREAM.format(name=name))
        return load_stream(path)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
