"""What the loop does with a field of a message, by its type and the node that it is for."""

from __future__ import annotations

# What a field's value becomes.
(SKIP, INTEGER, INTEGER_AS_FLOAT, INTEGER_AS_DECIMAL, BOOLEAN, FLOAT, DOUBLE, BYTES, TEXT) = range(9)
(BYTES_AS_FIXED, TEXT_AS_UUID, TEXT_AS_MOMENT, SYMBOL, TIMESTAMP, MESSAGE, REFUSED) = range(9, 16)
"""SKIP: no column wants the field, which may be one of a oneof whose other fields are wanted. REFUSED: no value of this
type can be in the node."""

SINGLE, LIST_ENTRY, MAP_ENTRY = range(3)
"""How a field fills its node. OUTER is the list or map that an entry belongs to."""

VARINT, EIGHT_BYTES, BLOB, GROUP, GROUP_END, FOUR_BYTES = range(6)
"""Wire types."""

(INT64, INT32, UINT32, UINT64, SINT32, SINT64) = range(6)
"""How an integer's bits are read."""

# Columns of the table of operations.
(OPERATION, NODE, WIRE, SHAPE, OUTER, BITS, MIN_VALUE, MAX_VALUE, FACTOR, TENS, LIMIT_HIGH, LIMIT_LOW, SIZE) = range(13)
"""MIN_VALUE to LIMIT_LOW are as in Avro's table."""
(FIELDS, COUNT, BEGIN, BEGUN, NEEDS, NEEDED, MAPS, MAPPED, CELLS, SYMBOLS, KNOWN, CLOSED) = range(13, 25)
"""Of a message. At FIELDS in `places` are COUNT pairs of a field's number and operation, in the numbers' order. At
BEGIN are BEGUN times four numbers: a node, whether an absent field is there (1) or null (0), and the two words of the
value that it has. At NEEDS are NEEDED nodes that must not be null, at MAPS are MAPPED nodes of maps. CELLS is how many
values a message without fields writes.

Of an enum: at SYMBOLS are KNOWN triples of a number, and of begin and length of its symbol's text, in the numbers'
order. Other numbers of a CLOSED one are as if they were not there."""
(OTHERS, OTHER, WIDTH) = range(25, 28)
"""At OTHERS are OTHER nodes of the other fields of a oneof."""

# What is wrong with a record.
(SOUND, ENDS_EARLY, LONG_VARINT, NO_FIELD, NO_WIRE_TYPE, NO_GROUP, TOO_DEEP, TOO_MANY) = range(8)
(INVALID_UTF8, NOT_HELD, NO_UUID, OTHER_LENGTH, NO_SYMBOL, REPEATED_KEY, NO_TIMESTAMP, MISSING, UNFIT) = range(8, 17)
NO_MOMENT = 17

MALFORMED, UTF8, RANGE, MISMATCH = "InvalidProtobuf", "InvalidUtf8", "OutOfRange", "TypeMismatch"
LACKING = "MissingRequired"

SAID: dict[int, tuple[str, str]] = {
    ENDS_EARLY: (MALFORMED, "the message ends within this value"),
    LONG_VARINT: (MALFORMED, "a number has more than 64 bits"),
    NO_FIELD: (MALFORMED, "there is no field of this number"),
    NO_WIRE_TYPE: (MALFORMED, "there is no such wire type"),
    NO_GROUP: (MALFORMED, "a group does not begin and end as one"),
    TOO_DEEP: ("TooDeep", "messages are nested too deep"),
    TOO_MANY: ("TooLarge", "the record's elements have too many columns for its bytes"),
    INVALID_UTF8: (UTF8, "a text is not UTF-8"),
    NOT_HELD: (RANGE, "the column cannot hold this number"),
    NO_UUID: (MISMATCH, "the text is no UUID"),
    NO_MOMENT: (MISMATCH, "the text is no such date or time in ISO 8601"),
    OTHER_LENGTH: (MISMATCH, "the value has another length than the column"),
    NO_SYMBOL: (MISMATCH, "the enum has no symbol of this number; a column of type int keeps any"),
    REPEATED_KEY: (MISMATCH, "the map has a key twice"),
    NO_TIMESTAMP: (RANGE, "the timestamp's nanoseconds or seconds are out of range"),
    MISSING: (LACKING, "required, and the message has no such field"),
}
"""The class and the text of the error, by what is wrong."""
