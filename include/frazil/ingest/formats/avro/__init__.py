"""Decodes Avro's binary encoding directly into columns, with the schema that each record was written with."""
