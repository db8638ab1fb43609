"""JSON objects that stand for Iceberg maps, rewritten as lists of entries, which is what the JSON reader can read.

Only schemas with a map pay for it: their records are parsed in Python and written anew, about 10 µs each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyiceberg import types as iceberg

NEVER_A_LIST = "false"
"""Written where a map's value is no object, or names a key twice: the reader refuses it there."""


class _Number(str):
    """A number's own digits, so that rewriting changes none of them."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as written: keys given twice are both here."""


def map_rewriter(schema: iceberg.StructType) -> Callable[[bytes], bytes] | None:
    """A function that writes a message anew with its maps as lists of entries; None when the schema has no map."""
    if not _has_map(schema):
        return None

    def rewrite(text: bytes) -> bytes:
        try:
            parsed = json.loads(
                text,
                parse_float=_Number,
                parse_int=_Number,
                parse_constant=_Number,
                object_pairs_hook=_Pairs,
            )
            return _write(parsed, schema).encode()
        except (ValueError, RecursionError):
            return text  # the reader says what is wrong with it

    return rewrite


def _has_map(kind: iceberg.IcebergType) -> bool:
    match kind:
        case iceberg.StructType():
            return any(_has_map(field.field_type) for field in kind.fields)
        case iceberg.ListType():
            return _has_map(kind.element_type)
    return isinstance(kind, iceberg.MapType)


def _write(value: Any, kind: iceberg.IcebergType | None) -> str:
    if isinstance(kind, iceberg.MapType) and value is not None:
        return _entries(value, kind)
    match value:
        case _Number():
            return str(value)
        case _Pairs():
            fields = kind.fields if isinstance(kind, iceberg.StructType) else ()
            kinds = {field.name: field.field_type for field in fields}
            return "{" + ",".join(f"{json.dumps(k)}:{_write(v, kinds.get(k))}" for k, v in value) + "}"
        case list():
            element = kind.element_type if isinstance(kind, iceberg.ListType) else None
            return "[" + ",".join(_write(part, element) for part in value) + "]"
    return json.dumps(value)


def _entries(value: Any, kind: iceberg.MapType) -> str:
    if not isinstance(value, _Pairs) or len({key for key, _ in value}) < len(value):
        return NEVER_A_LIST
    entries = (f'{{"key":{json.dumps(key)},"value":{_write(part, kind.value_type)}}}' for key, part in value)
    return "[" + ",".join(entries) + "]"
