"""Decodes JSON objects (RFC 8259). `decoder` decodes chunks with the compiled loop `rows`."""
