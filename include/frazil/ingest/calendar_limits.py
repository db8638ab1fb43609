"""Finds dates and times outside the years 1 to 9999, the range of Iceberg's and Python's calendars."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.ingest.arrow_values import child_arrays
from frazil.spec.iceberg import DATE_LIMITS_DAYS, TIMESTAMP_LIMITS_US

MILLISECONDS = (TIMESTAMP_LIMITS_US[0] // 1000, TIMESTAMP_LIMITS_US[1] // 1000)
OUT_OF_RANGE = "OutOfRange"
_OUTSIDE = "outside the years 1 to 9999"


class OutOfRangeValue(NamedTuple):
    """A date or time outside the years 1 to 9999. `number` counts the `unit` (days or microseconds) since 1970."""

    path: tuple[str, ...]
    """Names of the fields that lead to the value. A list entry is named `element`, a map entry `key` or `value`."""
    number: int
    unit: str

    def error_text(self, sent: str | None) -> str:
        """Return the error text. `sent` is the value as sent, if known."""
        name = ".".join(self.path)
        return range_error(name, self.number, self.unit) if sent is None else f"{name}: {sent} is {_OUTSIDE}"


def find_out_of_range(rows: pa.Table) -> dict[int, OutOfRangeValue]:
    """Return each row's first date or timestamp outside the years 1 to 9999 (UTC), at any depth, by row index."""
    out_of_range: dict[int, OutOfRangeValue] = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if any(map(_may_be_out_of_range, column.chunks)):
            for row, beyond in _find_values(column.combine_chunks(), (field.name,)).items():
                out_of_range.setdefault(row, beyond)
    return out_of_range


def range_error(name: str, value: int, unit: str) -> str:
    return f"{name}: {value} {unit} since 1970 is {_OUTSIDE}"


def _limits_of(kind: pa.DataType) -> tuple[int, int] | None:
    if pa.types.is_timestamp(kind):
        return TIMESTAMP_LIMITS_US
    return DATE_LIMITS_DAYS if pa.types.is_date32(kind) else None


def _may_be_out_of_range(array: pa.Array) -> bool:
    """Return whether a value may be out of range, even inside a null struct or list. Faster than `_find_values`."""
    if limits := _limits_of(array.type):
        ends = pc.min_max(_as_integers(array)).as_py()
        return bool(ends["min"] is not None and (ends["min"] < limits[0] or ends["max"] > limits[1]))
    return any(_may_be_out_of_range(part) for part in child_arrays(array))


def _find_values(array: pa.Array, path: tuple[str, ...]) -> dict[int, OutOfRangeValue]:
    kind, children = array.type, child_arrays(array)
    if limits := _limits_of(kind):
        numbers = _as_integers(array)
        bad = pc.or_(pc.less(numbers, limits[0]), pc.greater(numbers, limits[1])).fill_null(False)
        positions = np.flatnonzero(bad.to_numpy(zero_copy_only=False))
        unit = "days" if limits is DATE_LIMITS_DAYS else "microseconds"
        return {int(i): OutOfRangeValue(path, numbers[i].as_py(), unit) for i in positions.tolist()}
    out_of_range: dict[int, OutOfRangeValue] = {}
    if pa.types.is_struct(kind):
        for i, part in enumerate(array.flatten()):
            for position, beyond in _find_values(part, (*path, kind.field(i).name)).items():
                out_of_range.setdefault(position, beyond)
        return out_of_range
    if not children:
        return {}
    entries = np.full(len(children[0]), -1, np.int64)
    offsets = array.offsets.to_numpy()
    for entry in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
        entries[offsets[entry] : offsets[entry + 1]] = entry
    names = ("key", "value") if pa.types.is_map(kind) else ("element",)
    for part, name in zip(children, names, strict=True):
        for position, beyond in _find_values(part, (*path, name)).items():
            if (row := int(entries[position])) >= 0:
                out_of_range.setdefault(row, beyond)
    return out_of_range


def _as_integers(array: pa.Array) -> pa.Array:
    return array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
