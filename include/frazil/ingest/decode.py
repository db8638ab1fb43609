"""The input and output types of decoders. The decoders of each format are in `formats`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from frazil.errors import FrazilError
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.schema_drift import NO_DRIFT, WHOLE_RECORD, DriftScope, Path, SchemaDrift, join_drift
from frazil.spec.addresses import is_object_store_error


class Rejection(NamedTuple):
    """One record that becomes a dead letter. `index` is the record's position in the chunk."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which is unused; a tuple is cheaper than a dataclass
    error_class: str
    error: str


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """Decoded records. Row i of `rows` comes from record `record_indexes[i]`. A record's rows are in order."""

    rows: pa.Table
    record_indexes: NDArray[np.int64]
    rejections: list[Rejection] = field(default_factory=list)
    drift: SchemaDrift = NO_DRIFT
    dropped: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Indexes of the records that a transform drops. They become neither rows nor rejections."""

    @classmethod
    def without_columns(cls, chunk: RecordChunk) -> DecodedChunk:
        return cls(pa.table({}), np.arange(len(chunk)))

    def with_indexes(self, positions: NDArray[np.int64]) -> DecodedChunk:
        """Renumber the records as part of a larger chunk: record i becomes record `positions[i]`."""
        rejections = [Rejection(int(positions[r.index]), r.error_class, r.error) for r in self.rejections]
        return DecodedChunk(self.rows, positions[self.record_indexes], rejections, self.drift, positions[self.dropped])

    def with_rejections(self, rejections: Iterable[Rejection]) -> DecodedChunk:
        return dataclasses.replace(self, rejections=[*self.rejections, *rejections])

    def no_result_mask(self, records: int) -> NDArray[np.bool_]:
        """Return a mask of `records` records: True without a row, unless the record is rejected or dropped."""
        mask = np.ones(records, np.bool_)
        mask[self.record_indexes] = False
        mask[self.dropped] = False
        mask[np.array([r.index for r in self.rejections], np.int64)] = False
        return mask

    def reject_rows(self, errors: Mapping[int, tuple[str, str]]) -> DecodedChunk:
        """Turn rows into rejections. `errors` has the error class and text of each row to reject."""
        if not errors:
            return self
        good = np.ones(len(self.record_indexes), np.bool_)
        good[list(errors)] = False
        rejections = [Rejection(int(self.record_indexes[row]), *errors[row]) for row in sorted(errors)]
        return dataclasses.replace(
            self,
            rows=self.rows.filter(pa.array(good)),
            record_indexes=self.record_indexes[good],
            rejections=[*self.rejections, *rejections],
        )

    def remove_records(self, mask: NDArray[np.bool_]) -> DecodedChunk:
        stays = ~mask[self.record_indexes]
        rejections = [r for r in self.rejections if not mask[r.index]]
        dropped = self.dropped[~mask[self.dropped]]
        return DecodedChunk(self.rows.filter(pa.array(stays)), self.record_indexes[stays], rejections, dropped=dropped)


Decoder = Callable[[RecordChunk], DecodedChunk]
"""Decodes each record to one row or one rejection, which does not depend on other records.

With JSON lines, envelopes or transforms, a record may have several rows. Envelopes and transforms may drop a record.
"""


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    hidden: Collection[Path] = ()
    """Lower-case paths of the fields that `rest` omits."""
    drift: Literal["off", "additive", "full"] = "off"
    """The drift to report in `DecodedChunk.drift`. `full`: also columns that must become wider or optional."""
    within: Sequence[DriftScope] = WHOLE_RECORD
    """The structs to search for drift. All must have the same fields."""


PLAIN = DecoderOptions()


class FormatDecoder:
    """A decoder of one format. Methods that its format does not need do nothing."""

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        raise NotImplementedError

    def rename(self, aliases: Mapping[str, str], required: Collection[str]) -> None:
        """Fill null columns from their `aliases` (alias to column). A `required` column needs a value by any name."""

    def field_names(self, record: bytes, path: Sequence[str]) -> Collection[str]:
        """Return the names of all fields, even null ones, of the object at `path` in an accepted record."""
        raise NotImplementedError("only formats with envelopes name their fields")

    def changes_no_row(self, record: bytes) -> bool:
        """Return whether an event that the decoder accepted changes no table row, such as a heartbeat."""
        raise NotImplementedError("only formats with envelopes have events")


class WrappingDecoder(FormatDecoder):
    """Base class of decoders that change the records before another decoder reads them."""

    def __init__(self, decode: FormatDecoder) -> None:
        self._decode = decode

    def rename(self, aliases: Mapping[str, str], required: Collection[str]) -> None:
        self._decode.rename(aliases, required)


def find_nulls(
    rows: pa.Table, required: Iterable[str], where: NDArray[np.bool_] | bool = True
) -> dict[int, tuple[str, str]]:
    """Return the error class and text of each row in the mask `where` that has a null in a required column."""
    errors: dict[int, tuple[str, str]] = {}
    for name in required:
        for row in np.flatnonzero(rows.column(name).is_null().to_numpy() & where).tolist():
            errors.setdefault(row, ("MissingRequired", f"{name}: required, and missing or null"))
    return errors


def join_results(parts: Sequence[DecodedChunk]) -> DecodedChunk:
    """Join the results for several parts of one chunk. The indexes in the parts must refer to the whole chunk."""
    return DecodedChunk(
        pa.concat_tables([part.rows for part in parts]),
        np.concatenate([part.record_indexes for part in parts]),
        [rejection for part in parts for rejection in part.rejections],
        join_drift(part.drift for part in parts),
        np.concatenate([part.dropped for part in parts]),
    )


def drop_incomplete_records(decoded: DecodedChunk) -> DecodedChunk:
    """Remove the rows of records with a rejection. Only the first rejection of a record is kept."""
    if not decoded.rejections:
        return decoded
    first = {r.index: r for r in reversed(decoded.rejections)}
    good = ~np.isin(decoded.record_indexes, np.fromiter(first, np.int64, len(first)))
    rows = decoded.rows if good.all() else decoded.rows.filter(good)
    return DecodedChunk(
        rows, decoded.record_indexes[good], [first[i] for i in sorted(first)], decoded.drift, decoded.dropped
    )


def number_rows_in_records(record_indexes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the number of each row within its record, starting at 0. Row i comes from record `record_indexes[i]`."""
    order = np.argsort(record_indexes, kind="stable")
    numbers = np.empty(len(record_indexes), np.int32)
    numbers[order] = np.arange(len(record_indexes)) - run_starts(record_indexes[order])
    return numbers


def run_starts(grouped: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each element, the index of the first element in its run of equal values."""
    begins = np.r_[True, grouped[1:] != grouped[:-1]] if len(grouped) else np.zeros(0, np.bool_)
    return np.maximum.accumulate(np.where(begins, np.arange(len(grouped)), 0))


T = TypeVar("T")


def is_environment_error(error: Exception) -> bool:
    """Return whether the host or a service certainly caused the error, rather than a record."""
    if isinstance(error, OSError):
        return error.errno is not None or is_object_store_error(error)
    return isinstance(error, FrazilError | MemoryError)


def bisect_failures(count: int, attempt: Callable[[int, int], T]) -> Iterator[tuple[int, int, T | Exception]]:
    """Call `attempt` on pieces of the records `[0, count)`, and yield `(start, end, result)` for each piece, in order.

    A piece for which `attempt` raises is bisected. The result of a single failing record is its exception. Errors of
    the environment are raised.
    """
    if count == 0:
        return
    pieces = [(0, count)]
    while pieces:
        start, end = pieces.pop()
        try:
            yield start, end, attempt(start, end)
        except Exception as error:
            if is_environment_error(error):
                raise
            if end - start == 1:
                yield start, end, error
            else:
                middle = (start + end) // 2
                pieces += [(middle, end), (start, middle)]
