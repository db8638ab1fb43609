"""Decodes Avro's binary encoding directly into columns, using each record's writer schema."""
