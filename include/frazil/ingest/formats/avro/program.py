"""Compiles a writer's Avro schema and the table's columns into operations for the decoding loop (`loop`).

A field fills the column of the same name, or else a column named in its aliases.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from pyiceberg import types as iceberg

from frazil.ingest.formats.avro import operations as op
from frazil.ingest.formats.avro.loop import Plan
from frazil.ingest.formats.avro.schema import AvroType, TooLarge, filled_columns
from frazil.ingest.formats.columns import ColumnMemory
from frazil.ingest.formats.json.nodes import CHILDREN, LEFT, REQUIRED
from frazil.ingest.formats.json.rest import Entries, Fields, FilledPart, Path, column_parts, is_rest
from frazil.ingest.formats.json.types import AS_JSON, AS_TEXT, JSON_IN_TEXT, Units

_SKIP_OPERATIONS = {
    "null": (op.NOTHING, 0),
    **{name: (op.FIXED_BYTES, size) for name, size in (("boolean", 1), ("float", 4), ("double", 8))},
    **dict.fromkeys(("int", "long", "enum"), (op.VARINT, 0)),
    **dict.fromkeys(("bytes", "string"), (op.BLOB, 0)),
    "union": (op.UNION, 0),
    "record": (op.RECORD, 0),
    "array": (op.ARRAY, 0),
    "map": (op.MAP, 0),
}
INT, LONG = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_DAY_MS = 86_400_000
_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": -1000}
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}

MAX_OPERATIONS = 100_000
"""Maximum number of operations for one schema. Repeated named types can multiply them exponentially."""
MISSING = "MissingRequired"
Fault = tuple[str, str]
"""Error class and text."""


class TargetColumn(NamedTuple):
    kind: iceberg.IcebergType
    node: int
    field_id: int
    path: str

    def inside(self, field: iceberg.NestedField, node: int) -> TargetColumn:
        """Return the target for a field, element, key or value of this target."""
        path = f"{self.path}.{field.name}" if self.path else field.name
        return TargetColumn(field.field_type, node, field.field_id, path)


class LoopProgram:
    """The operations of all schemas added so far. Adding a schema replaces `plan`."""

    _width: int

    def __init__(self, schema: iceberg.StructType, columns: ColumnMemory, units: Units) -> None:
        self._columns = columns
        self._units = units
        self._record = TargetColumn(schema, 0, -1, "")
        self._rows: list[list[int]] = []
        self._max_rows = 0
        self._operands: list[int] = []
        self.paths: list[str] = []
        """The path of the column that each operation fills, or of the field that it skips."""
        self._symbols: dict[str, int] = {}
        self.unfit: dict[int, Fault] = {}
        self.text = b""
        """The symbols of all enums, concatenated."""
        self.plan = Plan(np.zeros((0, self._width), np.int64), np.zeros(1, np.int64))

    def _complete_plan(self) -> None:
        self.plan = Plan(np.array(self._rows, np.int64), np.array(self._operands or [0], np.int64))

    def _add_row(self, kind: int, target: TargetColumn) -> int:
        if len(self._rows) >= self._max_rows:
            raise TooLarge(f"reading its types into the columns takes more than {MAX_OPERATIONS:,} operations")
        self._rows.append([0] * self._width)
        self._rows[-1][op.OPERATION], self._rows[-1][op.NODE] = kind, target.node  # the same columns in Protobuf
        self.paths.append(target.path)
        return len(self._rows) - 1

    def _targets(self, target: TargetColumn, kind: iceberg.StructType) -> dict[str, TargetColumn]:
        first = self._columns.nodes[target.node, CHILDREN]
        nodes = self._columns.lists[first : first + len(kind.fields)].tolist()
        return {field.name: target.inside(field, node) for field, node in zip(kind.fields, nodes, strict=True)}

    def _set_field(self, row: int, column: int, value: int) -> None:
        self._rows[row][column] = int(value)

    def _intern_symbol(self, symbol: str) -> tuple[int, int]:
        encoded = symbol.encode("utf-8", "replace")
        if symbol not in self._symbols:
            self._symbols[symbol] = len(self.text)
            self.text += encoded
        return self._symbols[symbol], len(encoded)


class AvroProgram(LoopProgram):
    _width = op.WIDTH

    def __init__(
        self, schema: iceberg.StructType, columns: ColumnMemory, units: Units, hidden: Collection[Path] = ()
    ) -> None:
        super().__init__(schema, columns, units)
        self._hidden = hidden
        self._skips: dict[int, int] = {}
        self._kept_types: list[AvroType] = []
        self.rests: dict[int, FilledPart | None] = {}
        """Fields of each SPAN operation that fill other columns. The remaining fields become JSON text."""
        self.numbers: set[int] = set()
        """SPAN operations that read numbers. The JSON text has infinities as numbers, not as strings."""
        self.spans: dict[int, AvroType] = {}
        """The Avro type of each SPAN operation's values, which become JSON text."""

    def add(self, written: AvroType) -> int:
        """Add a writer schema, and return the first operation of its records. Adds nothing if it raises TooLarge."""
        rows, operands, skips = len(self._rows), len(self._operands), dict(self._skips)
        self._max_rows = rows + MAX_OPERATIONS
        self._kept_types.append(written)  # `_skips` has ids of types, which must stay alive
        try:
            root = self._add_operation(written, self._record)
        except TooLarge:
            del self._rows[rows:], self.paths[rows:], self._operands[operands:]
            self.unfit = {row: fault for row, fault in self.unfit.items() if row < rows}
            self.spans = {row: kind for row, kind in self.spans.items() if row < rows}
            self.numbers = {row for row in self.numbers if row < rows}
            self._skips = skips
            raise
        self._complete_plan()
        return root

    def _add_operation(self, written: AvroType, target: TargetColumn) -> int:  # noqa: PLR0911 - one for each kind of type
        if written.kind == "union":
            row = self._add_row(op.UNION, target)
            branches = [self._add_operation(branch, target) for branch in written.parts]
            return self._set_operands(row, branches)
        if written.kind == "null":
            if self._columns.nodes[target.node, REQUIRED] or target.node == 0:
                return self._add_rejection(target, MISSING, "required, and the record has null")
            return self._add_row(op.NULL, target)
        if (unit := self._units.get(target.field_id)) in (AS_JSON, AS_TEXT, JSON_IN_TEXT):
            if written.kind == "string" and (written.is_json or unit == JSON_IN_TEXT):
                return self._add_row(op.TEXT, target)
            row = self._add_row(op.SPAN, target)
            self.spans[row] = written
            if unit == AS_TEXT and written.kind in {"float", "double"}:
                self.numbers.add(row)
            return self._set_operands(row, [self._add_skip(written, target.path)])
        match written.kind, target.kind:
            case "record", iceberg.StructType():
                return self._add_record(written, target, target.kind)
            case "array", iceberg.ListType():
                inside = target.inside(target.kind.element_field, target.node + 1)
                operation = self._add_row(op.ARRAY, target)
                self._set_field(operation, op.EMPTY, may_be_empty(written.parts[0]))
                return self._set_operands(operation, [self._add_operation(written.parts[0], inside)])
            case "map", iceberg.MapType():
                inside = target.inside(target.kind.value_field, target.node + 2)
                return self._set_operands(
                    self._add_row(op.MAP, target), [self._add_operation(written.parts[0], inside)]
                )
            case "enum", iceberg.StringType():
                operands = [part for symbol in written.symbols for part in self._intern_symbol(symbol)]
                operation = self._set_operands(self._add_row(op.ENUM, target), operands)
                self._set_field(operation, op.COUNT, len(written.symbols))
                return operation
        columns = scalar_operation(written, target.kind, self._units.get(target.field_id))
        if columns is None:
            target_text = "the record" if target.node == 0 else f"a column of type {target.kind}"
            return self._add_rejection(target, op.MISMATCH, f"Avro's {written} cannot fill {target_text}")
        row = self._add_row(columns.pop(op.OPERATION), target)
        for column, value in columns.items():
            self._set_field(row, column, value)
        return row

    def _add_record(self, written: AvroType, target: TargetColumn, kind: iceberg.StructType) -> int:
        operation = self._add_all_fields(written, target, kind)
        if (rest_node := int(self._columns.nodes[target.node, LEFT])) == 0:
            return operation
        # The whole record is stored. Fields that columns take are removed when it is converted to JSON.
        row = self._add_row(op.SPAN, TargetColumn(iceberg.StringType(), rest_node, -1, target.path))
        self.spans[row] = written
        self.rests[row] = use_written_names(column_parts(kind, self._units, self._hidden), written)
        return self._set_operands(row, [operation])

    def _add_all_fields(self, written: AvroType, target: TargetColumn, kind: iceberg.StructType) -> int:
        rests = {field.name for field in kind.fields if is_rest(field, self._units)}
        targets = {name: inside for name, inside in self._targets(target, kind).items() if name not in rests}
        filled = filled_columns(written, targets)
        unfilled = [inside for name, inside in targets.items() if name not in filled.values()]
        for inside in unfilled:
            if self._columns.nodes[inside.node, REQUIRED]:
                name = written.name.rpartition(".")[2]
                return self._add_rejection(
                    inside, MISSING, f"required, and the writer schema's {name} has no such field"
                )
        row = self._add_row(op.RECORD, target)
        operands = [
            self._add_operation(part, targets[filled[i]])
            if i in filled
            else self._add_skip(part, _nested_path(target, names[0]))
            for i, (part, names) in enumerate(zip(written.parts, written.fields, strict=True))
        ]
        self._set_operands(row, operands)
        self._set_field(row, op.FIRST_UNFILLED, len(self._operands))
        self._set_field(row, op.UNFILLED, len(unfilled))
        self._operands += [inside.node for inside in unfilled]
        return row

    def _add_skip(self, written: AvroType, path: str) -> int:
        nowhere = TargetColumn(iceberg.BooleanType(), -1, -1, path)
        pending, nested = [written], []
        while pending:
            schema = pending.pop()
            if id(schema) in self._skips:
                continue
            kind, size = _SKIP_OPERATIONS.get(schema.kind, (op.FIXED_BYTES, schema.size))
            row = self._skips[id(schema)] = self._add_row(kind, nowhere)
            self._set_field(row, op.SIZE, size)
            if schema.parts:
                nested.append((row, schema.parts))
                pending += schema.parts
            self._set_field(row, op.EMPTY, schema.kind == "array" and may_be_empty(schema.parts[0]))
        for row, parts in nested:
            self._set_operands(row, [self._skips[id(part)] for part in parts])
        return self._skips[id(written)]

    def _add_rejection(self, target: TargetColumn, error_class: str, text: str) -> int:
        row = self._add_row(op.REFUSED, target)
        self.unfit[row] = (error_class, f"{target.path}: {text}" if target.path else text)
        return row

    def _set_operands(self, row: int, operands: list[int]) -> int:
        self._set_field(row, op.FIRST, len(self._operands))
        self._set_field(row, op.COUNT, len(operands))
        self._operands += operands
        return row


def scalar_operation(  # noqa: PLR0911, PLR0912 - a table of pairs of types
    written: AvroType, kind: iceberg.IcebergType, unit: str | None
) -> dict[int, int] | None:
    """Return the operation for this pair of types, by column of the table of operations; None if they do not match."""
    bits = 32 if written.kind == "int" else 64
    match written.kind, kind:
        case "boolean", iceberg.BooleanType():
            return {op.OPERATION: op.BOOLEAN}
        case (("int" | "long"), iceberg.IntegerType()):
            return _integer_operation(bits, INT)
        case (("int" | "long"), iceberg.LongType()):
            return _integer_operation(bits, LONG)
        case (("int" | "long"), iceberg.FloatType() | iceberg.DoubleType()):
            return {op.OPERATION: op.INTEGER_AS_FLOAT, op.BITS: bits}
        case (("int" | "long"), iceberg.DecimalType()):
            return {op.OPERATION: op.INTEGER_AS_DECIMAL, op.BITS: bits, **decimal_fields(0, kind)}
        case "int", iceberg.DateType() if written.logical == "date":
            return _integer_operation(bits, INT)
        case "int", iceberg.TimeType() if written.logical == "time-millis":
            return _integer_operation(bits, (0, _DAY_MS - 1), 1000)
        case "long", iceberg.TimeType() if written.logical == "time-micros":
            return _integer_operation(bits, (0, 1000 * _DAY_MS - 1))
        case (("int" | "long"), iceberg.TimestampType() | iceberg.TimestamptzType()):
            return _timestamp_operation(written, kind, unit, bits)
        case "float", iceberg.FloatType() | iceberg.DoubleType():
            return {op.OPERATION: op.FLOAT}
        case "double", iceberg.FloatType() | iceberg.DoubleType():
            return {op.OPERATION: op.DOUBLE}
        case (("bytes" | "string"), iceberg.StringType()) if not written.logical:  # a decimal's bytes are not text
            return {op.OPERATION: op.TEXT}
        case (("bytes" | "string"), iceberg.BinaryType()):
            return {op.OPERATION: op.BYTES}
        case "bytes", iceberg.FixedType(root=size):
            return {op.OPERATION: op.BYTES_AS_FIXED, op.SIZE: size}
        case "string", iceberg.UUIDType():
            return {op.OPERATION: op.TEXT_AS_UUID}
        case "string", iceberg.DateType() | iceberg.TimeType() | iceberg.TimestampType() | iceberg.TimestamptzType():
            return {op.OPERATION: op.TEXT_AS_MOMENT}
        case "fixed", iceberg.BinaryType():
            return {op.OPERATION: op.FIXED, op.SIZE: written.size}
        case "fixed", iceberg.FixedType(root=size) if written.size == size:
            return {op.OPERATION: op.FIXED, op.SIZE: size}
        case "fixed", iceberg.UUIDType() if written.size == 16:
            return {op.OPERATION: op.FIXED_AS_UUID, op.SIZE: 16}
        case (("bytes" | "fixed"), iceberg.DecimalType(scale=scale)) if written.logical == "decimal":
            if written.scale > scale:
                return None
            operation = op.BYTES_AS_DECIMAL if written.kind == "bytes" else op.FIXED_AS_DECIMAL
            return {op.OPERATION: operation, op.SIZE: written.size, **decimal_fields(written.scale, kind)}
    return None


def _timestamp_operation(
    written: AvroType, kind: iceberg.IcebergType, unit: str | None, bits: int
) -> dict[int, int] | None:
    local = written.logical.startswith("local-")
    if written.logical.removeprefix("local-").startswith("timestamp-"):
        unit = _UNITS[written.logical.rpartition("-")[2]]
    elif written.logical:
        return None
    if unit is None or (local and isinstance(kind, iceberg.TimestamptzType)):
        return None
    return _integer_operation(bits, *timestamp_limits(unit))


def timestamp_limits(unit: str) -> tuple[tuple[int, int], int]:
    """Return the range of a numeric timestamp in this unit, and the factor to microseconds."""
    factor = _MICROSECONDS[unit]
    highest = LONG[1] // max(factor, 1)
    return (LONG if factor <= 1 else (-highest, highest)), factor


def _integer_operation(bits: int, within: tuple[int, int], factor: int = 1) -> dict[int, int]:
    low, high = within
    return {op.OPERATION: op.INTEGER, op.BITS: bits, op.MIN_VALUE: low, op.MAX_VALUE: high, op.FACTOR: factor}


def decimal_fields(scale: int, kind: iceberg.DecimalType) -> dict[int, int]:
    tens = kind.scale - scale
    limit = np.array(divmod(10 ** max(0, kind.precision - tens), 2**64), np.uint64).view(np.int64).tolist()
    return {op.TENS: tens, op.LIMIT_HIGH: limit[0], op.LIMIT_LOW: limit[1]}


def use_written_names(part: FilledPart | None, written: AvroType) -> FilledPart | None:
    """Return `part` with the writer schema's field names. As in `column_parts`, None stands for the whole value."""
    if part is None:
        return None
    if written.kind == "union":
        parts = [translated for branch in written.parts if (translated := use_written_names(part, branch)) is not None]
        inner = {name: inside for part in parts if isinstance(part, Fields) for name, inside in part.taken.items()}
        return Fields(inner, part.hidden) if isinstance(part, Fields) else next(iter(parts), None)
    if isinstance(part, Entries):
        fits = written.kind == ("map" if part.is_map else "array")
        each = use_written_names(part.each, written.parts[0]) if fits else None
        return None if each is None else Entries(each, is_map=part.is_map)
    if written.kind != "record":
        return Fields({}, part.hidden)
    columns = filled_columns(written, part.taken)
    inner = {written.fields[i][0]: use_written_names(part.taken[name], written.parts[i]) for i, name in columns.items()}
    hidden = {names[0].lower() for names in written.fields if any(name.lower() in part.hidden for name in names)}
    return Fields(inner, part.hidden | hidden)


def may_be_empty(written: AvroType) -> bool:
    visited: set[int] = set()
    pending = [written]
    while pending:
        schema = pending.pop()
        if schema.kind == "record":
            if id(schema) not in visited:
                visited.add(id(schema))
                pending += schema.parts
        elif schema.kind != "null" and not (schema.kind == "fixed" and schema.size == 0):
            return False
    return True


def _nested_path(target: TargetColumn, name: str) -> str:
    return f"{target.path}.{name}" if target.path else name
