"""The operations of the Avro loop. Each reads a value of one Avro type into one column node, or skips it."""

from __future__ import annotations

# Without a node: skip bytes.
(NOTHING, VARINT, FIXED_BYTES, BLOB) = range(4)
"""Skip SIZE bytes (FIXED_BYTES), or a length-prefixed value (BLOB)."""
# One value into a node.
(NULL, BOOLEAN, INTEGER, INTEGER_AS_FLOAT, INTEGER_AS_DECIMAL, FLOAT, DOUBLE, BYTES, TEXT) = range(4, 13)
(FIXED, BYTES_AS_FIXED, FIXED_AS_UUID, TEXT_AS_UUID, BYTES_AS_DECIMAL, FIXED_AS_DECIMAL, ENUM) = range(13, 20)
TEXT_AS_MOMENT = 20
REFUSED = 21
# With nested values, with or without a node.
(UNION, RECORD, ARRAY, MAP, SPAN) = range(22, 27)
"""SPAN: store the position and length of a value, which is converted to JSON text after the loop."""

# Columns of the table of operations.
(OPERATION, NODE, SIZE, FIRST, COUNT, FIRST_UNFILLED, UNFILLED) = range(7)
"""NODE is -1 if the value fills no column. `operands[FIRST:][:COUNT]` are the operations of a record's fields, a
union's branches, an array's element or a map's value. For an enum, they are each symbol's start and length.
`operands[FIRST_UNFILLED:][:UNFILLED]` are the nodes that no field of the record fills.
"""
(BITS, MIN_VALUE, MAX_VALUE, FACTOR, TENS, LIMIT_HIGH, LIMIT_LOW, EMPTY, WIDTH) = range(7, 16)
"""BITS is the written number's size. The number must be between MIN_VALUE and MAX_VALUE; it is multiplied by FACTOR, or
divided if FACTOR is negative. A decimal is multiplied by 10^TENS; its absolute value must be below LIMIT. EMPTY
is 1 if an array's elements may take no bytes.
"""

# Errors of a record.
(VALID, ENDS_EARLY, LONG_VARINT, NO_BOOLEAN, NO_BRANCH, NO_SYMBOL, NO_LENGTH, NO_COUNT, TRAILING_BYTES) = range(9)
(WIDE_INT, INVALID_UTF8, NOT_HELD, NO_UUID, OTHER_LENGTH, NO_DECIMAL, REPEATED_KEY, TOO_DEEP, UNFIT) = range(9, 18)
NO_MOMENT = 18

MALFORMED, UTF8, RANGE, MISMATCH, DEEP = "InvalidAvro", "InvalidUtf8", "OutOfRange", "TypeMismatch", "TooDeep"

ERRORS: dict[int, tuple[str, str]] = {
    ENDS_EARLY: (MALFORMED, "the record ends within this value"),
    LONG_VARINT: (MALFORMED, "a number has more than 64 bits"),
    NO_BOOLEAN: (MALFORMED, "a boolean is neither 0 nor 1"),
    NO_BRANCH: (MALFORMED, "the union has no such branch"),
    NO_SYMBOL: (MALFORMED, "the enum has no such symbol"),
    NO_LENGTH: (MALFORMED, "a length is negative"),
    NO_COUNT: (MALFORMED, "the count of elements is more than the record can hold"),
    TRAILING_BYTES: (MALFORMED, "the record has bytes after its last field"),
    WIDE_INT: (MALFORMED, "an int has more than 32 bits"),
    INVALID_UTF8: (UTF8, "a string is not UTF-8"),
    NOT_HELD: (RANGE, "the column cannot hold this number"),
    NO_UUID: (MISMATCH, "the string is not a UUID"),
    NO_MOMENT: (MISMATCH, "the string is not a date or time of this type in ISO 8601"),
    OTHER_LENGTH: (MISMATCH, "the value's length differs from the column's"),
    NO_DECIMAL: (MALFORMED, "a decimal has no bytes"),
    REPEATED_KEY: (MISMATCH, "the map has a key twice"),
    TOO_DEEP: (DEEP, "values are nested too deep"),
}
