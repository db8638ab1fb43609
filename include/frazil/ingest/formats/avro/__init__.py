"""Avro's binary encoding: by the schema that a record was written with, straight into columns."""
