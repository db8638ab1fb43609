"""Decodes Protobuf messages with the schema that each was written with."""
