"""Protobuf messages, by the schema that they were written with."""
