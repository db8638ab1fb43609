"""Decodes JSON objects (RFC 8259): `decoder` decodes chunks; `record` defines what each record means."""
