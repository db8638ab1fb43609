"""What a format's decoder takes and returns. The formats themselves are in `formats`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from frazil.ingest.chunk import Chunk
from frazil.ingest.sightings import NOTHING_SIGHTED, Sightings, joined_sightings


class Rejection(NamedTuple):
    """One record that becomes a dead letter; `index` is its place in the chunk."""

    index: int  # type: ignore[assignment]  # nobody looks for a value in it, and a tuple is cheaper than a dataclass
    error_class: str
    error: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of a chunk of n records: row i of `rows` is record `kept[i]`, and all others are rejections.

    Where a record may be several rows (JSON lines), `kept` has it several times, its rows in their order.
    """

    rows: pa.Table
    kept: NDArray[np.int64]
    rejections: list[Rejection] = field(default_factory=list)
    sighted: Sightings = NOTHING_SIGHTED
    """What records have beyond the schema, where a decoder was asked to look for that."""

    def moved(self, places: NDArray[np.int64]) -> Decoded:
        """The same, where record i of this chunk was record `places[i]` of a larger one."""
        rejections = [Rejection(int(places[r.index]), r.error_class, r.error) for r in self.rejections]
        return Decoded(self.rows, places[self.kept], rejections, self.sighted)

    def neither(self, records: int) -> NDArray[np.bool_]:
        """Which of the chunk's records are neither rows nor rejections."""
        found = np.ones(records, np.bool_)
        found[self.kept] = False
        found[np.array([r.index for r in self.rejections], np.int64)] = False
        return found

    def without(self, taken: NDArray[np.bool_]) -> Decoded:
        """The same, without the records of the chunk that are `taken`."""
        stays = ~taken[self.kept]
        rejections = [r for r in self.rejections if not taken[r.index]]
        return Decoded(self.rows.filter(pa.array(stays)), self.kept[stays], rejections)


class Decoder(Protocol):
    """Decodes chunks of one format to rows of one schema. A record's row or rejection depends on no other record."""

    def __call__(self, chunk: Chunk) -> Decoded:
        """Each of the chunk's records is either one row (JSON lines: one or several) or one rejection."""


@runtime_checkable
class EventDecoder(Protocol):
    """A decoder of a format that has envelopes."""

    def names(self, record: bytes, path: Sequence[str]) -> Collection[str]:
        """The fields that a part of a record, an object, has. Only for a record that is a row, and a part in it.

        A field that is null is among them, one that is missing is not.
        """

    def is_other_event(self, record: bytes) -> bool:
        """Whether a record is an event that tells no change of a row. Only for a record that is a row."""


@runtime_checkable
class RenamingDecoder(Protocol):
    """A decoder for which it matters that two of its columns are one."""

    def rename(self, aliases: Mapping[str, str], required: Collection[str]) -> None:
        """Each alias fills the column that it leads to where that column's own name is null.

        The `required` of these columns need a value under one of their names.
        """


def joined(parts: Sequence[Decoded]) -> Decoded:
    """The parts of one chunk as one; their indexes are the chunk's already."""
    return Decoded(
        pa.concat_tables([part.rows for part in parts]),
        np.concatenate([part.kept for part in parts]),
        [rejection for part in parts for rejection in part.rejections],
        joined_sightings(part.sighted for part in parts),
    )


def whole_records(decoded: Decoded) -> Decoded:
    """The same, where each record is either rows or one rejection, the first one that it has."""
    if not decoded.rejections:
        return decoded
    first = {r.index: r for r in reversed(decoded.rejections)}
    good = ~np.isin(decoded.kept, np.fromiter(first, np.int64, len(first)))
    rows = decoded.rows if good.all() else decoded.rows.filter(good)
    return Decoded(rows, decoded.kept[good], [first[i] for i in sorted(first)], decoded.sighted)


def line_numbers(kept: NDArray[np.int64]) -> NDArray[np.int32]:
    """For each row the number of rows of its record before it."""
    order = np.argsort(kept, kind="stable")
    numbers = np.empty(len(kept), np.int32)
    numbers[order] = np.arange(len(kept)) - first_places(kept[order])
    return numbers


def first_places(grouped: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place, where the run of equal values that it belongs to begins."""
    begins = np.r_[True, grouped[1:] != grouped[:-1]] if len(grouped) else np.zeros(0, np.bool_)
    return np.maximum.accumulate(np.where(begins, np.arange(len(grouped)), 0))
