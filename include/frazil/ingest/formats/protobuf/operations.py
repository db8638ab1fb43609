"""The operations of the Protobuf loop. Each reads a field of one type into one column node, or skips it."""

from __future__ import annotations

from frazil.ingest.formats.avro import operations as avro

BITS, FACTOR, TENS = avro.BITS, avro.FACTOR, avro.TENS
MIN_VALUE, MAX_VALUE, LIMIT_LOW, LIMIT_HIGH = avro.MIN_VALUE, avro.MAX_VALUE, avro.LIMIT_LOW, avro.LIMIT_HIGH

# Conversions of a field's value.
(SKIP, INTEGER, INTEGER_AS_FLOAT, INTEGER_AS_DECIMAL, BOOLEAN, FLOAT, DOUBLE, BYTES, TEXT) = range(9)
(BYTES_AS_FIXED, TEXT_AS_UUID, TEXT_AS_MOMENT, SYMBOL, TIMESTAMP, MESSAGE, REFUSED) = range(9, 16)
"""SKIP: only other fields of the oneof fill columns. REFUSED: reject the record; the node cannot hold the type."""

SINGLE, LIST_ENTRY, MAP_ENTRY = range(3)
"""How a field fills its node. OUTER is the list or map to which an entry belongs."""

VARINT, EIGHT_BYTES, BLOB, GROUP, GROUP_END, FOUR_BYTES = range(6)

(INT64, INT32, UINT32, UINT64, SINT32, SINT64) = range(6)

# Columns of the table of operations. Those from 7 to 13 are BITS to LIMIT_LOW of Avro's operations.
(OPERATION, NODE, SIZE, WIRE, SHAPE, OUTER, CLOSED) = range(7)
(FIELDS, COUNT, BEGIN, BEGUN, NEEDS, NEEDED, MAPS, MAPPED, SYMBOLS, KNOWN, OTHERS, OTHER) = range(14, 26)
"""Pairs of columns: an index in `operands`, and the number of entries there. FIELDS has pairs of a field's number and
operation, sorted by number. BEGIN has groups of a node, whether an absent field has a value (1) or null (0), and that
value's two words. NEEDS has nodes that must not be null, and MAPS nodes of maps. SYMBOLS has the sorted numbers of an
enum, each with the start and length of its symbol's text.

OTHERS has the nodes of the other fields in the same oneof. CLOSED is 1 for a closed enum: its unknown numbers count as
absent.
"""
CELLS, WIDTH = 26, 27
"""CELLS is the number of values of an empty message."""

# Errors of a record: those of Avro's operations, and others.
VALID, ENDS_EARLY, LONG_VARINT, NO_SYMBOL = avro.VALID, avro.ENDS_EARLY, avro.LONG_VARINT, avro.NO_SYMBOL
INVALID_UTF8, NOT_HELD, NO_UUID, NO_MOMENT = avro.INVALID_UTF8, avro.NOT_HELD, avro.NO_UUID, avro.NO_MOMENT
OTHER_LENGTH, REPEATED_KEY, TOO_DEEP, UNFIT = avro.OTHER_LENGTH, avro.REPEATED_KEY, avro.TOO_DEEP, avro.UNFIT
(NO_FIELD, NO_WIRE_TYPE, NO_GROUP, TOO_MANY, NO_TIMESTAMP, MISSING) = range(19, 25)

MALFORMED, RANGE, MISMATCH = "InvalidProtobuf", avro.RANGE, avro.MISMATCH
MISSING_REQUIRED = "MissingRequired"

ERRORS: dict[int, tuple[str, str]] = {
    **avro.ERRORS,
    ENDS_EARLY: (MALFORMED, "the message ends within this value"),
    LONG_VARINT: (MALFORMED, "a number has more than 64 bits"),
    NO_FIELD: (MALFORMED, "the field number is invalid"),
    NO_WIRE_TYPE: (MALFORMED, "the wire type is invalid"),
    NO_GROUP: (MALFORMED, "a group's start and end do not match"),
    TOO_DEEP: ("TooDeep", "messages are nested too deep"),
    TOO_MANY: ("TooLarge", "the record's elements would fill too many column values for its size"),
    NO_SYMBOL: (MISMATCH, "the enum has no symbol of this number; a column of type int stores any number"),
    NO_TIMESTAMP: (RANGE, "the timestamp's nanoseconds or seconds are out of range"),
    MISSING: (MISSING_REQUIRED, "required, and the message has no such field"),
}
