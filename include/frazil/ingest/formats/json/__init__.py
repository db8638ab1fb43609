"""Decodes JSON objects (RFC 8259). `decoder` decodes chunks; `record` is the reference for the result of each
record.
"""
