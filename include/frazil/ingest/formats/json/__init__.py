"""Decodes JSON objects (RFC 8259). `decoder` decodes chunks; `record` defines the correct result for each record."""
