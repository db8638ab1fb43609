"""Decodes Protobuf messages, using each record's writer schema."""
