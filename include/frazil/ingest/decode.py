"""The input and output of a format's decoder. The formats are in `formats`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from frazil.ingest.chunk import Chunk
from frazil.ingest.schema_drift import NO_DRIFT, SchemaDrift, joined_drift


class Rejection(NamedTuple):
    """One record that becomes a dead letter; `index` is its position in the chunk."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which is unused; a tuple is cheaper than a dataclass
    error_class: str
    error: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Result of decoding n records: row i of `rows` comes from record `kept[i]`; all other records are rejections.

    If a record may be several rows (JSON lines, envelopes), `kept` repeats it, with its rows in order.
    """

    rows: pa.Table
    kept: NDArray[np.int64]
    rejections: list[Rejection] = field(default_factory=list)
    drift: SchemaDrift = NO_DRIFT
    """What records have beyond the schema, if the decoder was asked to report it."""

    def moved(self, places: NDArray[np.int64]) -> Decoded:
        """The same result, where record i of this chunk is record `places[i]` of a larger one."""
        rejections = [Rejection(int(places[r.index]), r.error_class, r.error) for r in self.rejections]
        return Decoded(self.rows, places[self.kept], rejections, self.drift)

    def neither(self, records: int) -> NDArray[np.bool_]:
        """Mask of the chunk's records that are neither rows nor rejections."""
        found = np.ones(records, np.bool_)
        found[self.kept] = False
        found[np.array([r.index for r in self.rejections], np.int64)] = False
        return found

    def without(self, taken: NDArray[np.bool_]) -> Decoded:
        """The same result without the records that are `taken`."""
        stays = ~taken[self.kept]
        rejections = [r for r in self.rejections if not taken[r.index]]
        return Decoded(self.rows.filter(pa.array(stays)), self.kept[stays], rejections)


class Decoder(Protocol):
    """Decodes chunks of one format to rows of one schema. A record's result depends on no other record."""

    def __call__(self, chunk: Chunk) -> Decoded:
        """Decode each record to one row (JSON lines, envelopes: one or several) or one rejection."""


@runtime_checkable
class EventDecoder(Protocol):
    """A decoder of a format that has envelopes."""

    def names(self, record: bytes, path: Sequence[str]) -> Collection[str]:
        """Field names of an object inside a record; only valid for a record that is a row and has this part.

        Includes fields that are null, not those that are missing.
        """

    def is_other_event(self, record: bytes) -> bool:
        """Whether a record is an event that changes no row; only valid for a record that is a row."""


@runtime_checkable
class RenamingDecoder(Protocol):
    """A decoder that can read two fields into one column."""

    def rename(self, aliases: Mapping[str, str], required: Collection[str]) -> None:
        """Fill each column from its aliases where the field with the column's own name is null.

        The `required` ones need a value under one of their names.
        """


def joined(parts: Sequence[Decoded]) -> Decoded:
    """Join the parts of one chunk; their indexes already refer to the chunk."""
    return Decoded(
        pa.concat_tables([part.rows for part in parts]),
        np.concatenate([part.kept for part in parts]),
        [rejection for part in parts for rejection in part.rejections],
        joined_drift(part.drift for part in parts),
    )


def whole_records(decoded: Decoded) -> Decoded:
    """The same result, but a record with any rejection has no rows and only its first rejection."""
    if not decoded.rejections:
        return decoded
    first = {r.index: r for r in reversed(decoded.rejections)}
    good = ~np.isin(decoded.kept, np.fromiter(first, np.int64, len(first)))
    rows = decoded.rows if good.all() else decoded.rows.filter(good)
    return Decoded(rows, decoded.kept[good], [first[i] for i in sorted(first)], decoded.drift)


def line_numbers(kept: NDArray[np.int64]) -> NDArray[np.int32]:
    """Number each row within its record, from 0."""
    order = np.argsort(kept, kind="stable")
    numbers = np.empty(len(kept), np.int32)
    numbers[order] = np.arange(len(kept)) - first_places(kept[order])
    return numbers


def first_places(grouped: NDArray[np.int64]) -> NDArray[np.int64]:
    """The start of the run of equal values that each position belongs to."""
    begins = np.r_[True, grouped[1:] != grouped[:-1]] if len(grouped) else np.zeros(0, np.bool_)
    return np.maximum.accumulate(np.where(begins, np.arange(len(grouped)), 0))
