"""Finds dates and times outside the years 1 to 9999, the range of Iceberg's and Python's calendars."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil.spec.type_ends import DAYS, MICROSECONDS

MILLISECONDS = (MICROSECONDS[0] // 1000, MICROSECONDS[1] // 1000)
OUT_OF_RANGE = "OutOfRange"
"""Error class of a record with a date or time outside the range."""
_OUTSIDE = "outside the years 1 to 9999"


class Beyond(NamedTuple):
    """A date or time outside the range. `number` is in days or microseconds (`unit`) since 1970."""

    path: tuple[str, ...]
    """Names of the fields that lead to the value. A list entry is named `element`, a map entry `key` or `value`."""
    number: int
    unit: str

    def text(self, sent: str | None) -> str:
        """Return the error text. `sent` is the value as text in the record; None if unknown."""
        name = ".".join(self.path)
        return range_error(name, self.number, self.unit) if sent is None else f"{name}: {sent} is {_OUTSIDE}"


def out_of_range(rows: pa.Table) -> dict[int, Beyond]:
    """Map row indexes to the row's first date or timestamp outside the years 1 to 9999 (UTC), at any depth. Other rows
    are omitted.
    """
    found: dict[int, Beyond] = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if _has_moments(field.type) and _beyond(chunk := column.combine_chunks()):
            for row, beyond in _entries(chunk, (field.name,)).items():
                found.setdefault(row, beyond)
    return found


def range_error(name: str, value: int, unit: str) -> str:
    """Return the error text for a date or time outside the range."""
    return f"{name}: {value} {unit} since 1970 is {_OUTSIDE}"


def _has_moments(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_moments(kind.field(i).type) for i in range(kind.num_fields))
    return _limits(kind) is not None


def _limits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the smallest and largest valid value of a date or timestamp type; None for other types."""
    if pa.types.is_timestamp(kind):
        return MICROSECONDS
    return DAYS if pa.types.is_date32(kind) else None


def _beyond(array: pa.Array) -> bool:
    """Return whether any value may be outside the range. The values behind nulls are checked, too.

    This check is cheap. If it returns False, as for most chunks, `_find_values` need not search the values.
    """
    if limits := _limits(array.type):
        ends = pc.min_max(_numbers(array)).as_py()
        return bool(ends["min"] is not None and (ends["min"] < limits[0] or ends["max"] > limits[1]))
    return any(_beyond(part) for part in _parts(array))


def _parts(array: pa.Array) -> list[pa.Array]:
    kind = array.type
    if pa.types.is_struct(kind):
        return [array.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [array.keys, array.items]
    return [array.values] if pa.types.is_list(kind) or pa.types.is_large_list(kind) else []


def _entries(array: pa.Array, path: tuple[str, ...]) -> dict[int, Beyond]:
    """Map the index of an entry to its first value outside the range, at any depth."""
    kind = array.type
    if not _has_moments(kind):
        return {}
    if limits := _limits(kind):
        numbers = _numbers(array)
        bad = pc.or_(pc.less(numbers, limits[0]), pc.greater(numbers, limits[1])).fill_null(False)
        places = np.flatnonzero(bad.to_numpy(zero_copy_only=False))
        unit = "days" if limits is DAYS else "microseconds"
        return {int(i): Beyond(path, numbers[i].as_py(), unit) for i in places.tolist()}
    found: dict[int, Beyond] = {}
    if pa.types.is_struct(kind):
        for i, part in enumerate(array.flatten()):
            for place, beyond in _entries(part, (*path, kind.field(i).name)).items():
                found.setdefault(place, beyond)
        return found
    places = _enclosing(array)
    names = ("key", "value") if pa.types.is_map(kind) else ("element",)
    for part, called in zip(_parts(array), names, strict=True):
        for place, beyond in _entries(part, (*path, called)).items():
            if (row := int(places[place])) >= 0:
                found.setdefault(row, beyond)
    return found


def _enclosing(array: pa.Array) -> NDArray[np.int64]:
    """Return, for each value of the child array, the index of the list or map that contains it; -1 if none does."""
    found = np.full(len(_parts(array)[0]), -1, np.int64)
    offsets = array.offsets.to_numpy()
    for entry in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
        found[offsets[entry] : offsets[entry + 1]] = entry
    return found


def _numbers(array: pa.Array) -> pa.Array:
    return array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
