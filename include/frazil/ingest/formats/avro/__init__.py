"""Decodes Avro's binary encoding directly into columns, using the schema that each record was written with."""
