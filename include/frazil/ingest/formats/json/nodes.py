"""Converts a schema to arrays for a compiled loop: a node for each field, element, key and value, outer nodes first."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyiceberg import types as iceberg

from frazil.errors import SpecError
from frazil.ingest.formats.json import types
from frazil.ingest.formats.json.rest import Entries, FilledPart, Path, column_parts, is_rest
from frazil.ingest.formats.json.types import AS_JSON, JSON_IN_TEXT, OF_REST, Units
from frazil.pyiceberg_fixes import VariantType

(STRING, LONG, INT, DOUBLE, FLOAT, BOOLEAN, DECIMAL, DATE, TIME, TIMESTAMP) = range(10)
(SECONDS, MILLISECONDS, MICROSECONDS, NANOSECONDS, UUID, BINARY, FIXED) = range(10, 17)
(JSON, JSON_TEXT, REST, STRUCT, LISTED, LIST, MAP) = range(17, 24)
"""Kinds of nodes. The four units are kinds for timestamps that arrive as numbers.

JSON stores the JSON text of any value. JSON_TEXT stores a string's content, and the JSON text of other values. REST
stores the members of its struct that fill no other node. LISTED is a struct that is an array in records.
"""

_KINDS: dict[type[iceberg.IcebergType], int] = {
    iceberg.StringType: STRING,
    VariantType: STRING,
    iceberg.LongType: LONG,
    iceberg.IntegerType: INT,
    iceberg.DoubleType: DOUBLE,
    iceberg.FloatType: FLOAT,
    iceberg.BooleanType: BOOLEAN,
    iceberg.DecimalType: DECIMAL,
    iceberg.DateType: DATE,
    iceberg.TimeType: TIME,
    iceberg.TimestampType: TIMESTAMP,
    iceberg.TimestamptzType: TIMESTAMP,
    iceberg.UUIDType: UUID,
    iceberg.BinaryType: BINARY,
    iceberg.FixedType: FIXED,
    iceberg.StructType: STRUCT,
    iceberg.ListType: LIST,
    iceberg.MapType: MAP,
}


def check_supported(schema: iceberg.StructType, name: str = "json") -> None:
    """Raise SpecError with all columns whose types this format does not support."""
    if errors := "; ".join(_unsupported_errors(schema, "schema", name)):
        raise SpecError(errors)


def _unsupported_errors(kind: iceberg.IcebergType, where: str, name: str) -> Iterator[str]:
    if type(kind) not in _KINDS:
        yield f"{where}: format {name} cannot fill a column of type {kind}; declare another type"
    if isinstance(kind, iceberg.MapType) and not isinstance(kind.key_type, iceberg.StringType):
        yield f"{where}: keys of format {name} are strings, so the map's key must be string, not {kind.key_type}"
    for field in types.inner_fields(kind):
        if name == "json" and any(c < " " or c in '"\\' for c in field.name):
            yield f"{where}: the name of column {field.name!r} has a character that JSON escapes; rename it"
        yield from _unsupported_errors(field.field_type, f"{where}.{field.name}", name)


_UNIT_KINDS = {"s": SECONDS, "ms": MILLISECONDS, "us": MICROSECONDS, "ns": NANOSECONDS}
_TEXT_KINDS = {AS_JSON: JSON, types.AS_TEXT: JSON, JSON_IN_TEXT: JSON_TEXT, OF_REST: REST}
_TWO_WORDS = (STRING, BINARY, FIXED, DECIMAL, UUID, JSON, JSON_TEXT, REST)
CASTABLE = (STRING, LONG, INT, DOUBLE, FLOAT, BOOLEAN, MILLISECONDS, MICROSECONDS, NANOSECONDS)
WORDS = np.array([2 if kind in _TWO_WORDS else 0 if kind in (STRUCT, LISTED) else 1 for kind in range(24)])
"""`WORDS[kind]` is the number of 64-bit words that the compiled loop (`rows`) needs for a value of this kind."""

Numbers = NDArray[np.int64]


# Columns of the table of nodes.
(KIND, REQUIRED, PRECISION, SCALE, AFTER, ENTRY_SET, INNER, FIELDS, CHILDREN, NAME, LENGTH, PLAIN) = range(12)
"""PRECISION is the number of a decimal's digits, or a fixed's length. AFTER is the first node after this one that is
not inside it. INNER is the entry set of a list's or map's entries. FIELDS is the number of a struct's fields, whose
nodes begin at CHILDREN in `lists`. NAME is the name's start in `names`. PLAIN is 1 if JSON writes the name without
escapes.
"""
(SLOTS, MASK, LONGEST, OPENING, FOLLOWING, SEEN, BASE, FLAG, KEY, WATCHED) = range(12, 22)
(LEFT, KEEPS, HIDDEN, HIDING, CAST, NODE_WIDTH) = range(22, 28)
"""SLOTS is where a struct's hash table begins in `lists`; MASK its size, less one; LONGEST the length of its longest
name. KEY is where the name begins in `lists`, with a closing quotation mark, as words of eight bytes. WATCHED is 0 for
a struct that is not searched for new keys. For LISTED, the nodes of elements (or -1) begin at SLOTS, and MASK is the
last index.

LEFT is the node of a struct's REST, or 0. KEEPS is 1 for an object or array that has parts for a REST. HIDDEN is where
the names that a REST omits begin in `lists`, each as its start in `names` and its length, written as in JSON; HIDING is
their number. CAST is 1 if a node accepts other forms: numbers and booleans in strings, 0 and 1 as booleans, and numbers
and booleans as strings.

These columns change while records are read. BASE and FLAG are where words and flags begin. OPENING is the last object's
first field, FOLLOWING the next field in that object, and SEEN the number of the last object with this field.
"""


class NodeField(NamedTuple):
    """The field, element, key or value of a node. `unit` is its form in records, if the type does not determine it."""

    path: Path
    type: iceberg.IcebergType
    unit: str | None
    may_be_optional: bool
    """Whether the column could become optional. List elements and map values cannot."""
    may_be_wider: bool
    """Whether the column could get a wider type. The fields of a LISTED struct cannot."""


class Nodes(NamedTuple):
    """The nodes of a schema; node 0 is the record. An entry set is all rows, or the elements of one list or map."""

    table: Numbers
    lists: Numbers
    names: NDArray[np.uint8]
    fields: list[NodeField]


def build_nodes(schema: iceberg.StructType, units: Units, hidden: Collection[Path] = ()) -> Nodes:
    """Return the nodes of a schema. `hidden` has the lower-case paths of fields that a REST omits.

    Children are in field order. A list has one child; a map has two, its key and its value.
    """
    builder = _NodeBuilder(units, hidden)
    builder.add(iceberg.NestedField(-1, "", schema, required=True), -1, 0)
    return builder.nodes()


class _NodeBuilder:
    def __init__(self, units: Units, hidden: Collection[Path]) -> None:
        self._units, self._hidden = units, hidden
        self._entry_sets = 1
        self._rows: list[list[int]] = []
        self._lists: list[int] = []
        self._names = bytearray()
        self._fields: list[NodeField] = []

    def nodes(self) -> Nodes:
        names = np.frombuffer(bytes(self._names) or b" ", np.uint8)
        return Nodes(np.array(self._rows, np.int64), np.array([*self._lists, -1], np.int64), names, self._fields)

    def add(self, field: iceberg.NestedField, parent: int, entry_set: int) -> int:
        """Add the nodes of a field that is inside the node `parent`."""
        node, row, kind, field_id = len(self._rows), [0] * NODE_WIDTH, field.field_type, field.field_id
        self._rows.append(row)
        self._add_description(field, parent)
        utf8 = field.name.encode()
        row[KIND], row[REQUIRED], row[ENTRY_SET] = _KINDS[type(kind)], field.required, entry_set
        row[NAME], row[LENGTH] = len(self._names), len(utf8)
        row[PLAIN] = field.name.isprintable() and '"' not in field.name and "\\" not in field.name
        row[OPENING] = row[FOLLOWING] = -1
        row[WATCHED] = 1
        self._names += utf8
        row[KEY] = len(self._lists)
        quoted = utf8 + b'"'
        self._lists += np.frombuffer(quoted.ljust(-(-len(quoted) // 8) * 8, b"\0"), np.int64).tolist()
        match kind:
            case iceberg.TimestampType() | iceberg.TimestamptzType() if field_id in self._units:
                row[KIND] = _UNIT_KINDS[self._units[field_id]]
            case iceberg.StringType() if field_id in self._units:
                row[KIND] = _TEXT_KINDS[self._units[field_id]]
            case iceberg.DecimalType(precision=precision, scale=scale):
                row[PRECISION], row[SCALE] = precision, scale
            case iceberg.FixedType(root=length):
                row[PRECISION] = length
            case iceberg.StructType() if self._units.get(field_id) == types.LISTED:
                row[KIND] = LISTED
                self._add_elements(node, kind, entry_set)
            case iceberg.StructType():
                self._add_fields(node, kind, entry_set)
            case iceberg.ListType():
                row[INNER] = self._new_entry_set()
                self.add(kind.element_field, node, row[INNER])
            case iceberg.MapType():
                row[INNER] = self._new_entry_set()
                self.add(kind.key_field, node, row[INNER])
                self.add(kind.value_field, node, row[INNER])
        row[AFTER] = len(self._rows)
        return node

    def _add_description(self, field: iceberg.NestedField, parent: int) -> None:
        path: Path = ()
        in_struct, may_be_wider = False, True
        if parent >= 0:
            around, parent_kind = self._fields[parent], self._rows[parent][KIND]
            path, in_struct = (*around.path, field.name), parent_kind == STRUCT
            may_be_wider = around.may_be_wider and parent_kind != LISTED
        self._fields.append(
            NodeField(path, field.field_type, self._units.get(field.field_id), in_struct and may_be_wider, may_be_wider)
        )

    def _new_entry_set(self) -> int:
        self._entry_sets += 1
        return self._entry_sets - 1

    def _add_fields(self, node: int, kind: iceberg.StructType, entry_set: int) -> None:
        row = self._rows[node]
        added = [self.add(field, node, entry_set) for field in kind.fields]
        row[FIELDS], row[CHILDREN] = len(added), len(self._lists)
        self._lists += added
        called = [(k, f.name.encode()) for k, f in zip(added, kind.fields, strict=True) if not is_rest(f, self._units)]
        keys, names = [k for k, _ in called], [name for _, name in called]
        if len(keys) < len(added):
            row[LEFT] = next(k for k in added if k not in keys)
            self._mark_rest(node, column_parts(kind, self._units, self._hidden))
        size = 1 << (2 * len(names)).bit_length()
        slots = [-1] * size
        for child, name in zip(keys, names, strict=True):
            hashed = len(name)
            for octet in name:
                hashed = (hashed * 31 + octet) & 0xFFFFFFFF
            slot = hashed % size
            while slots[slot] >= 0:
                slot = (slot + 1) % size
            slots[slot] = child
        row[SLOTS], row[MASK], row[LONGEST] = len(self._lists), size - 1, max(map(len, names), default=0)
        self._lists += slots
        if keys:
            row[OPENING] = keys[0]
        for previous, child in pairwise(keys):
            self._rows[previous][FOLLOWING] = child

    def _add_elements(self, node: int, kind: iceberg.StructType, entry_set: int) -> None:
        row = self._rows[node]
        children = {int(field.name): self.add(field, node, entry_set) for field in kind.fields}
        row[FIELDS], row[CHILDREN], row[WATCHED] = len(children), len(self._lists), 0
        self._lists += children.values()
        row[SLOTS], row[MASK] = len(self._lists), max(children)
        self._lists += [children.get(index, -1) for index in range(1 + max(children))]

    def _mark_rest(self, node: int, part: FilledPart | None) -> None:
        if part is None:
            return
        row = self._rows[node]
        row[KEEPS] = 1
        if isinstance(part, Entries):
            self._mark_rest(node + 1 + part.is_map, part.each)
            return
        spans = []
        for name in map(msgspec.json.encode, sorted(part.hidden)):
            spans += [len(self._names), len(name) - 2]
            self._names += name[1:-1]
        row[HIDDEN], row[HIDING] = len(self._lists), len(part.hidden)
        self._lists += spans
        for child in self._lists[row[CHILDREN] : row[CHILDREN] + row[FIELDS]]:
            self._mark_rest(child, part.taken.get(self._fields[child].path[-1]))
