"""Compiles a Protobuf message's descriptor and the table's columns into operations for the decoding loop (`loop`).
Fields are matched to columns by name; fields without a column have no operation and are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import wrappers_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from pyiceberg import types as iceberg

from frazil.ingest.formats.avro.program import (
    INT,
    LONG,
    MAX_OPERATIONS,
    MISSING,
    Fault,
    LoopProgram,
    TargetColumn,
    decimal_fields,
    timestamp_limits,
)
from frazil.ingest.formats.avro.schema import TooLarge
from frazil.ingest.formats.columns import ColumnMemory
from frazil.ingest.formats.json.nodes import AFTER, REQUIRED
from frazil.ingest.formats.json.types import AS_JSON, AS_TEXT, JSON_IN_TEXT, OF_REST, Units
from frazil.ingest.formats.protobuf import operations as op

_F = FieldDescriptor
_INTEGERS = {
    _F.TYPE_INT32: (op.INT32, op.VARINT),
    _F.TYPE_INT64: (op.INT64, op.VARINT),
    _F.TYPE_UINT32: (op.UINT32, op.VARINT),
    _F.TYPE_UINT64: (op.UINT64, op.VARINT),
    _F.TYPE_SINT32: (op.SINT32, op.VARINT),
    _F.TYPE_SINT64: (op.SINT64, op.VARINT),
    _F.TYPE_FIXED32: (op.UINT32, op.FOUR_BYTES),
    _F.TYPE_FIXED64: (op.UINT64, op.EIGHT_BYTES),
    _F.TYPE_SFIXED32: (op.INT32, op.FOUR_BYTES),
    _F.TYPE_SFIXED64: (op.INT64, op.EIGHT_BYTES),
}
TYPE_NAMES = {getattr(_F, name): name.removeprefix("TYPE_").lower() for name in dir(_F) if name.startswith("TYPE_")}
_DATE_TIME_TYPES = (iceberg.DateType, iceberg.TimeType, iceberg.TimestampType, iceberg.TimestamptzType)
WRAPPERS = frozenset(message.full_name for message in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())
TIMESTAMP = "google.protobuf.Timestamp"


class _FieldMismatch(Exception):
    def __init__(self, error_class: str, text: str, path: str = "") -> None:
        super().__init__(error_class, text, path)


@dataclass(slots=True)
class _AbsentFields:
    """The entries in `operands` for BEGIN and NEEDS of a message's operation."""

    begin: list[int] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)


class ProtobufProgram(LoopProgram):
    _width = op.WIDTH

    def __init__(self, schema: iceberg.StructType, columns: ColumnMemory, units: Units, _: object = ()) -> None:
        super().__init__(schema, columns, units)
        self._absent: dict[int, _AbsentFields] = {}
        self._needed: dict[int, str] = {}
        self.spans: dict[int, Any] = {}
        """Always empty: `JsonTexts` writes the columns of JSON text."""

    def add(self, written: Descriptor) -> int | Fault:
        """Add a message type, and return its first operation. On an error, return the error and add nothing."""
        rows, operands = len(self._rows), len(self._operands)
        self._max_rows = rows + MAX_OPERATIONS
        try:
            root = self._add_fields(written, self._record)
        except (TooLarge, _FieldMismatch) as error:
            del self._rows[rows:], self.paths[rows:], self._operands[operands:]
            self._absent = {row: absent for row, absent in self._absent.items() if row < rows}
            self.unfit = {row: fault for row, fault in self.unfit.items() if row < rows}
            if isinstance(error, TooLarge):
                raise
            return error.args[0], ": ".join(part for part in (error.args[2], error.args[1]) if part)
        self._complete_plan()
        return root

    def required_paths(self, operation: int) -> str:
        """Return the paths of the columns that this message must fill, joined with "or"."""
        first = self._rows[operation][op.NEEDS]
        nodes = self._operands[first : first + self._rows[operation][op.NEEDED]]
        return " or ".join(self._needed[node] for node in nodes)

    def _add_fields(self, written: Descriptor, target: TargetColumn) -> int:
        assert isinstance(target.kind, iceberg.StructType)
        targets = self._targets(target, target.kind)
        row = self._add_row(op.MESSAGE, target)
        absent = self._absent[row] = _AbsentFields()
        fields = {field.name: field for field in written.fields}
        for name, inside in targets.items():
            if name not in fields and self._units.get(inside.field_id) not in (AS_JSON, AS_TEXT, JSON_IN_TEXT, OF_REST):
                if self._columns.nodes[inside.node, REQUIRED]:
                    raise _FieldMismatch(
                        MISSING, f"required, and the writer schema's {written.name} has no such field", inside.path
                    )
                absent.begin += [inside.node, 0, 0, 0]
        operations: dict[int, int] = {}
        maps: list[int] = []
        for name, inside in targets.items():
            if self._units.get(inside.field_id) in (AS_JSON, AS_TEXT, JSON_IN_TEXT, OF_REST):
                absent.begin += [inside.node, int(self._columns.nodes[inside.node, REQUIRED]), 0, 0]
            elif name in fields:
                operations[fields[name].number] = self._add_field(fields[name], inside, absent)
                if isinstance(inside.kind, iceberg.MapType):
                    maps.append(inside.node)
        self._link_oneofs(written, targets, operations)
        self._set_message(row, operations, absent, maps)
        self._set_field(row, op.CELLS, int(self._columns.nodes[target.node, AFTER]) - target.node)
        return row

    def _link_oneofs(self, written: Descriptor, targets: dict[str, TargetColumn], operations: dict[int, int]) -> None:
        """Make each field of a oneof clear the oneof's other fields, even if the field fills no column."""
        for oneof in written.oneofs:
            nodes = {member.name: targets[member.name].node for member in oneof.fields if member.name in targets}
            for member in oneof.fields:
                other_nodes = [node for name, node in nodes.items() if name != member.name]
                if not other_nodes:
                    continue
                if member.number not in operations:
                    nowhere = TargetColumn(iceberg.BooleanType(), -1, -1, member.name)
                    operations[member.number] = self._add_row(op.SKIP, nowhere)
                    self._set_field(operations[member.number], op.WIRE, wire_type(member))
                self._set_operands(operations[member.number], op.OTHERS, other_nodes)

    def _set_message(self, row: int, operations: dict[int, int], absent: _AbsentFields, maps: Sequence[int]) -> None:
        self._set_operands(row, op.FIELDS, [part for pair in sorted(operations.items()) for part in pair], 2)
        self._set_operands(row, op.BEGIN, absent.begin, 4)
        self._set_operands(row, op.NEEDS, absent.needs)
        self._set_operands(row, op.MAPS, maps)

    def _add_field(self, written: FieldDescriptor, target: TargetColumn, absent: _AbsentFields) -> int:
        """Add the operation for a field, and return its index. Adds the absent field's value to `absent`."""
        try:
            if written.is_repeated:
                row = self._add_repeated(written, target)
                absent.begin += [target.node, 1, 0, 0]
                return row
            row, default = self._add_single(written, target)
        except _FieldMismatch as error:
            row = self._add_row(op.REFUSED, target)
            self._set_field(row, op.WIRE, wire_type(written))
            if written.is_repeated and written.type not in (_F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_MESSAGE):
                self._set_field(row, op.SHAPE, op.LIST_ENTRY)
            self.unfit[row] = (error.args[0], f"{error.args[2] or target.path}: {error.args[1]}")
            default = None
        if written.has_presence or default is None:
            absent.begin += [target.node, 0, 0, 0]
            if self._columns.nodes[target.node, REQUIRED]:
                absent.needs.append(target.node)
                self._needed[target.node] = target.path
        else:
            absent.begin += [target.node, 1, *default]
        return row

    def _add_repeated(self, written: FieldDescriptor, target: TargetColumn) -> int:
        match target.kind:
            case iceberg.ListType():
                row, _ = self._add_single(written, target.inside(target.kind.element_field, target.node + 1))
                self._set_field(row, op.SHAPE, op.LIST_ENTRY)
            case iceberg.MapType() if is_map(written):
                row = self._add_map(written, target, target.kind)
            case _:
                kind = "map" if is_map(written) else f"repeated {type_name(written)}"
                raise _FieldMismatch(op.MISMATCH, f"Protobuf's {kind} cannot fill a column of type {target.kind}")
        self._set_field(row, op.OUTER, target.node)
        return row

    def _add_map(self, written: FieldDescriptor, target: TargetColumn, kind: iceberg.MapType) -> int:
        parts = written.message_type.fields_by_name
        if parts["key"].type != _F.TYPE_STRING:
            map_kind = f"Protobuf's map with keys of type {type_name(parts['key'])}"
            raise _FieldMismatch(
                op.MISMATCH, f"{map_kind} cannot fill a map; declare a list of structs with key and value"
            )
        key = target.inside(kind.key_field, target.node + 1)
        value = target.inside(kind.value_field, target.node + 2)
        row = self._add_row(op.MESSAGE, key)
        self._set_field(row, op.WIRE, op.BLOB)
        self._set_field(row, op.SHAPE, op.MAP_ENTRY)
        absent = _AbsentFields()
        operations = {1: self._add_field(parts["key"], key, absent), 2: self._add_field(parts["value"], value, absent)}
        if parts["value"].has_presence and (inside := self._absent.get(operations[2])):  # an entry has an empty message
            absent.begin[-4:] = [value.node, 1, 0, 0]
            absent.begin += inside.begin
            absent.needs += inside.needs
        elif self._rows[operations[2]][op.OPERATION] == op.TIMESTAMP:
            absent.begin[-4:] = [value.node, 1, 0, 0]
        self._set_message(row, operations, absent, ())
        self._set_field(row, op.CELLS, 2)
        return row

    def _add_single(self, written: FieldDescriptor, target: TargetColumn) -> tuple[int, list[int] | None]:
        """Return a single value's operation, and the two words of an absent field's value; None for null."""
        if written.type == _F.TYPE_GROUP:
            raise _FieldMismatch(op.MISMATCH, "Protobuf's group cannot fill a column")
        if written.type == _F.TYPE_MESSAGE:
            return self._add_message(written.message_type, target), None
        if written.enum_type is not None:
            return self._add_enum(written.enum_type, target)
        operation = scalar_operation(written.type, target.kind, self._units.get(target.field_id))
        if operation is None:
            raise _FieldMismatch(
                op.MISMATCH, f"Protobuf's {type_name(written)} cannot fill a column of type {target.kind}"
            )
        row = self._add_row(operation.pop(op.OPERATION), target)
        for column, value in operation.items():
            self._set_field(row, column, value)
        of_text = written.type == _F.TYPE_STRING and isinstance(target.kind, (iceberg.UUIDType, *_DATE_TIME_TYPES))
        has_no_default = of_text or (isinstance(target.kind, iceberg.FixedType) and target.kind.root > 0)
        return row, None if has_no_default else [0, 0]

    def _add_message(self, written: Descriptor, target: TargetColumn) -> int:
        match target.kind:
            case iceberg.StructType():
                row = self._add_fields(written, target)
            case iceberg.TimestampType() | iceberg.TimestamptzType() if written.full_name == TIMESTAMP:
                row = self._add_row(op.TIMESTAMP, target)
            case iceberg.StringType() if self._units.get(target.field_id) in (AS_JSON, AS_TEXT, JSON_IN_TEXT):
                row = self._add_row(op.BYTES, target)  # `JsonTexts` writes the text
            case _ if written.full_name in WRAPPERS:
                row = self._add_row(op.MESSAGE, target)
                inside, default = self._add_single(written.fields[0], target)
                absent = self._absent[row] = _AbsentFields([target.node, int(default is not None), 0, 0])
                self._set_message(row, {1: inside}, absent, ())
                self._set_field(row, op.CELLS, 1)
            case _:
                raise _FieldMismatch(
                    op.MISMATCH, f"Protobuf's message {written.name} cannot fill a column of type {target.kind}"
                )
        self._set_field(row, op.WIRE, op.BLOB)
        return row

    def _add_enum(self, written: EnumDescriptor, target: TargetColumn) -> tuple[int, list[int] | None]:
        symbols = {symbol.number: symbol.name for symbol in reversed(written.values)}  # of equal numbers, the first
        if isinstance(target.kind, iceberg.StringType):
            row = self._add_row(op.SYMBOL, target)
        elif isinstance(target.kind, iceberg.IntegerType | iceberg.LongType):
            row = self._add_row(op.INTEGER, target)
            for column, value in ((op.MIN_VALUE, INT[0]), (op.MAX_VALUE, INT[1]), (op.FACTOR, 1)):
                self._set_field(row, column, value)
        else:
            raise _FieldMismatch(
                op.MISMATCH, f"Protobuf's enum {written.name} cannot fill a column of type {target.kind}"
            )
        spans = {number: self._intern_symbol(name) for number, name in symbols.items()}
        self._set_operands(row, op.SYMBOLS, [part for number in sorted(spans) for part in (number, *spans[number])], 3)
        self._set_field(row, op.BITS, op.INT32)
        self._set_field(row, op.CLOSED, written.is_closed)
        if not isinstance(target.kind, iceberg.StringType):
            return row, [0, 0]
        first = spans.get(0)
        return row, None if first is None else [-1 - first[0], first[1]]

    def _set_operands(self, row: int, column: int, operands: Sequence[int], width: int = 1) -> None:
        """Append `operands`. Sets `column` to their start, and the next column to the number of groups."""
        self._set_field(row, column, len(self._operands))
        self._set_field(row, column + 1, len(operands) // width)
        self._operands += operands


def is_map(written: FieldDescriptor) -> bool:
    return written.message_type is not None and written.message_type.GetOptions().map_entry


def type_name(written: FieldDescriptor) -> str:
    if written.message_type is not None:
        return f"message {written.message_type.name}"
    return f"enum {written.enum_type.name}" if written.enum_type is not None else TYPE_NAMES[written.type]


def wire_type(written: FieldDescriptor) -> int:
    if written.type in _INTEGERS:
        return _INTEGERS[written.type][1]
    if written.type in (_F.TYPE_BOOL, _F.TYPE_ENUM):
        return op.VARINT
    if written.type == _F.TYPE_GROUP:
        return op.GROUP
    return {_F.TYPE_FLOAT: op.FOUR_BYTES, _F.TYPE_DOUBLE: op.EIGHT_BYTES}.get(written.type, op.BLOB)


def scalar_operation(  # noqa: PLR0911, PLR0912 - a table of pairs of types
    written: int, kind: iceberg.IcebergType, unit: str | None
) -> dict[int, int] | None:
    """Return the operation for this pair of types, by column of the table of operations; None if they do not match."""
    if written in _INTEGERS:
        bits, wire = _INTEGERS[written]
        columns = {op.BITS: bits, op.WIRE: wire}
        match kind:
            case iceberg.IntegerType():
                return _integer_operation(columns, INT)
            case iceberg.LongType():
                return _integer_operation(columns, LONG)
            case iceberg.FloatType() | iceberg.DoubleType():
                return {op.OPERATION: op.INTEGER_AS_FLOAT, **columns}
            case iceberg.DecimalType():
                return {op.OPERATION: op.INTEGER_AS_DECIMAL, **columns, **decimal_fields(0, kind)}
            case iceberg.TimestampType() | iceberg.TimestamptzType() if unit is not None:
                return _integer_operation(columns, *timestamp_limits(unit))
        return None
    match written, kind:
        case _F.TYPE_BOOL, iceberg.BooleanType():
            return {op.OPERATION: op.BOOLEAN, op.WIRE: op.VARINT}
        case _F.TYPE_FLOAT, iceberg.FloatType() | iceberg.DoubleType():
            return {op.OPERATION: op.FLOAT, op.WIRE: op.FOUR_BYTES}
        case _F.TYPE_DOUBLE, iceberg.FloatType() | iceberg.DoubleType():
            return {op.OPERATION: op.DOUBLE, op.WIRE: op.EIGHT_BYTES}
        case ((_F.TYPE_STRING | _F.TYPE_BYTES), iceberg.StringType()):
            return {op.OPERATION: op.TEXT, op.WIRE: op.BLOB}
        case ((_F.TYPE_STRING | _F.TYPE_BYTES), iceberg.BinaryType()):
            return {op.OPERATION: op.BYTES, op.WIRE: op.BLOB}
        case _F.TYPE_STRING, iceberg.UUIDType():
            return {op.OPERATION: op.TEXT_AS_UUID, op.WIRE: op.BLOB}
        case _F.TYPE_STRING, kind if isinstance(kind, _DATE_TIME_TYPES):
            return {op.OPERATION: op.TEXT_AS_MOMENT, op.WIRE: op.BLOB}
        case _F.TYPE_BYTES, iceberg.FixedType(root=size):
            return {op.OPERATION: op.BYTES_AS_FIXED, op.WIRE: op.BLOB, op.SIZE: size}
    return None


def _integer_operation(columns: dict[int, int], within: tuple[int, int], factor: int = 1) -> dict[int, int]:
    return {op.OPERATION: op.INTEGER, op.MIN_VALUE: within[0], op.MAX_VALUE: within[1], op.FACTOR: factor, **columns}
