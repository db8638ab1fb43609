"""Chooses each row's shuffle writer by table partition and Kafka coordinates, so repeated tasks choose equally."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from frazil.ingest.contract import OffsetRange, Shuffle
from frazil.ingest.parquet import FileLayout, encode_partition
from frazil.ingest.partitioning import group_by_partition

_IPC = pa.ipc.IpcWriteOptions(compression="lz4")
"""Compression of rows before Spark gets them, so that fewer bytes pass between Python and the JVM."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Rows that a task sends to one shuffle writer. `data` is an Arrow IPC stream."""

    writer: int
    task: int
    rows: int
    data: bytes


class Shuffler:
    def __init__(self, shuffle: Shuffle, layout: FileLayout, ranges: Sequence[OffsetRange], *, task: int) -> None:
        self._shuffle, self._layout, self._task = shuffle, layout, task
        self._salts = np.array([zlib.crc32(f"{r.topic}\0{r.partition}".encode()) for r in ranges], np.uint64)
        self._found: dict[tuple[object, ...], tuple[NDArray[np.uint16], NDArray[np.float64]]] = {}
        """The shuffle writers of each partition, and the end of each writer's share of `[0, 1)`."""
        self.sent = [0] * shuffle.writers

    @property
    def partitions(self) -> int:
        return len(self._found)

    def __call__(self, rows: pa.Table, *, range_index: NDArray[np.int32], offsets: NDArray[np.int64]) -> list[Parcel]:
        if rows.num_rows == 0:
            return []
        codes, values = group_by_partition(rows, self._layout.schema, self._layout.spec)
        found = [self._find_shares(value) for value in values]
        writers = np.array([several[0] for several, _ in found], np.uint16)[codes]
        for code, (several, ends) in enumerate(found):
            if len(several) > 1:
                mine = np.flatnonzero(codes == code)
                at = _pseudo_random(self._salts[range_index[mine]], offsets[mine])
                writers[mine] = several[np.searchsorted(ends[:-1], at, side="right")]
        order = np.argsort(writers, kind="stable")
        counts = np.bincount(writers, minlength=self._shuffle.writers).tolist()
        sorted_rows = rows if counts.count(0) == len(counts) - 1 else rows.take(pa.array(order))
        parcels, start = [], 0
        for writer, count in enumerate(counts):
            if count:
                sent = sorted_rows.slice(start, count)
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, sent.schema, options=_IPC) as to:
                    to.write_table(sent)
                packed: bytes = sink.getvalue().to_pybytes()
                parcels.append(Parcel(writer, self._task, count, packed))
                self.sent[writer] += count
                start += count
        return parcels

    def _find_shares(self, values: tuple[object, ...]) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
        # Floats that compare equal can be different partitions: 0.0 and -0.0.
        name = tuple(repr(v) if isinstance(v, float) else v for v in values)
        if name not in self._found:
            key = encode_partition(self._layout, values)
            one = zlib.crc32(repr(key).encode()) % self._shuffle.writers
            writers, ends = zip(*self._shuffle.shares.get(key, ((one, 1.0),)), strict=True)
            self._found[name] = np.array(writers, np.uint16), np.array(ends)
        return self._found[name]


def unpack_parcel(parcel: Parcel) -> pa.Table:
    with pa.ipc.open_stream(parcel.data) as stream:
        return stream.read_all()


def _pseudo_random(salts: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Derive a number in `[0, 1)` from each salt and offset, with SplitMix64's finalizer (OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        mixed = offsets.astype(np.uint64) + salts * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    places: NDArray[np.float64] = (mixed >> np.uint64(11)) / 2**53
    return places
