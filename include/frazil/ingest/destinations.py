"""Chooses the table for each row of a routed stream: by the record's topic, a header, or a column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil.ingest.binary_arrays import header_column, to_arrow_binary
from frazil.ingest.changes import delete_mask
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import Destinations, OffsetRange, Target
from frazil.ingest.decode import DecodedChunk, Rejection, number_rows_in_records
from frazil.spec.route import find_refusal

NO_TABLE = "NoTable"
MAIN: Target = "main"
MAX_REPORTED_VALUES = 10_000
MAX_CACHED_VALUES = 100_000
MAX_QUOTED_CHARACTERS = 100
_TO_DEFAULT_TABLE = "With route.otherwise: table, such records go to the default table"
UNKNOWN_TARGET: Target = ""
"""The target of records with a route value that has no table. Such records never evolve a table."""

_Destination = Target | Rejection | None
"""A row's table, a rejection without index, or None if the row's table must be created first."""


@dataclass(frozen=True, slots=True)
class DividedRows:
    """Rows with their targets. Rows for tables that must be created first are left out."""

    decoded: DecodedChunk
    targets: tuple[Target, ...]
    codes: NDArray[np.int64]
    unchanged: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Indexes of records that delete rows of a missing table. They change nothing."""

    @property
    def main_mask(self) -> NDArray[np.bool_]:
        mine = [code for code, target in enumerate(self.targets) if target == MAIN]
        return np.isin(self.codes, mine)

    @property
    def main_rows(self) -> pa.Table:
        mine = self.main_mask
        return self.decoded.rows if mine.all() else self.decoded.rows.filter(pa.array(mine))


class RowDivider:
    """Divides the rows of one task among the route's tables. A row's table depends only on its record."""

    def __init__(
        self, destinations: Destinations, ranges: Sequence[OffsetRange], *, quote: Callable[[str], str] = repr
    ) -> None:
        """`quote` formats a route value for the error text of a dead letter."""
        self._quote = quote
        self._to = destinations
        self._ranges = ranges
        self._cached_destination = lru_cache(MAX_CACHED_VALUES)(self._find_destination)
        self.values: set[str] = set()

    def __call__(self, chunk: RecordChunk, decoded: DecodedChunk) -> DividedRows:
        """Assign rows to targets. Omits rows for tables to be created first, and adds their values to `values`."""
        codes, values = self._encode(chunk, decoded)
        destinations = [self._cached_destination(value) for value in values]
        waits = np.array([outcome is None for outcome in destinations], np.bool_)[codes]
        rejected = np.array([isinstance(outcome, Rejection) for outcome in destinations], np.bool_)[codes]
        unneeded = waits & delete_mask(decoded.rows)
        for code in np.unique(codes[waits & ~unneeded]).tolist():
            if len(self.values) < MAX_REPORTED_VALUES:
                self.values.add(_decode_value(values[code]))
        unwanted = rejected & _superseded_deletes(decoded)
        rejected &= ~unwanted
        rejections, unchanged = list(decoded.rejections), decoded.record_indexes[unneeded]
        if len(unchanged):  # the other row of a record may change another table
            unchanged = np.setdiff1d(unchanged, decoded.record_indexes[~unneeded])
        for row in np.flatnonzero(rejected).tolist():
            rejection = destinations[codes[row]]
            assert isinstance(rejection, Rejection)
            rejections.append(rejection._replace(index=int(decoded.record_indexes[row])))
        stays = ~(waits | unwanted | np.isin(decoded.record_indexes, decoded.record_indexes[rejected]))
        rows, record_indexes = decoded.rows, decoded.record_indexes
        if not stays.all():
            rows, record_indexes, codes = rows.filter(pa.array(stays)), record_indexes[stays], codes[stays]
        # For rejected and waiting values, MAIN is only a placeholder: no row's code refers to it.
        targets = tuple(outcome if isinstance(outcome, str) else MAIN for outcome in destinations)
        return DividedRows(DecodedChunk(rows, record_indexes, rejections, decoded.drift), targets, codes, unchanged)

    def divide_records(
        self, chunk: RecordChunk, located: DecodedChunk, alike: Mapping[Target, Target]
    ) -> Iterator[RecordChunk]:
        """Yield the records of each target as a chunk, to be decoded with the target's schema.

        `located` has the column that selects the table, if a column does. `alike` maps each target to one target with
        the same columns, so that records of all these targets share a chunk. Records without a row in `located` get the
        main table's schema.
        """
        codes, values = self._encode(chunk, located)
        outcomes = map(self._cached_destination, values)
        record_targets = [outcome if isinstance(outcome, str) else UNKNOWN_TARGET for outcome in outcomes]
        targets = [MAIN, *dict.fromkeys(alike.get(target, target) for target in record_targets)]
        number = {target: n for n, target in enumerate(targets)}
        of_value = np.array([number[alike.get(target, target)] for target in record_targets], np.int64)
        of_record = np.full(len(chunk), number[MAIN])
        deletes = delete_mask(located.rows) if located.rows.num_rows else np.zeros(len(codes), np.bool_)
        for rows in (deletes, ~deletes):  # if a record has both, its upsert selects the table
            of_record[located.record_indexes[rows]] = of_value[codes[rows]]
        for target in np.unique(of_record).tolist():
            yield chunk.select(np.flatnonzero(of_record == target), targets[target])

    def _encode(self, chunk: RecordChunk, decoded: DecodedChunk) -> tuple[NDArray[np.int64], list[str | bytes | None]]:
        if self._to.by == "topic":
            ranges, codes = np.unique(chunk.range_index[decoded.record_indexes], return_inverse=True)
            return codes, [self._ranges[index].topic for index in ranges]
        if self._to.by == "field":
            column = decoded.rows.column(self._to.name).combine_chunks()
            values = column if pa.types.is_large_string(column.type) else pc.cast(column, pa.large_string())
        else:
            headers = header_column(chunk.headers, self._to.name, len(chunk)).take(decoded.record_indexes)
            values = to_arrow_binary(headers, pa.large_binary())
        encoded = values.dictionary_encode(null_encoding="encode")
        return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()

    def _find_destination(self, value: str | bytes | None) -> _Destination:
        if value is None:
            return MAIN if self._to.to_main else self._rejection(f"has no value. {_TO_DEFAULT_TABLE}")
        try:
            text = _decode_value(value)
        except UnicodeDecodeError:
            return self._rejection("its value is not UTF-8; write UTF-8")
        if text in self._to.targets:
            return self._to.targets[text]
        quoted = self._quote(text[:MAX_QUOTED_CHARACTERS])
        if not self._to.creates and self._to.to_main:
            return MAIN
        if not self._to.creates:
            return self._rejection(f"{quoted} has no table. Add it to route.tables. {_TO_DEFAULT_TABLE}")
        reason = find_refusal(text, self._to.allow) or self._to.refused.get(text) or self._to.full
        return self._rejection(f"{quoted} gets no table: {reason}") if reason else None

    def _rejection(self, reason: str) -> Rejection:
        name = "" if self._to.by == "topic" else f" {self._to.name}"
        return Rejection(0, NO_TABLE, f"{self._to.by}{name}: {reason}")


def _superseded_deletes(decoded: DecodedChunk) -> NDArray[np.bool_]:
    superseded = number_rows_in_records(decoded.record_indexes) > 0
    if not superseded.any():
        return superseded
    return np.isin(decoded.record_indexes, decoded.record_indexes[superseded]) & delete_mask(decoded.rows)


def _decode_value(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
