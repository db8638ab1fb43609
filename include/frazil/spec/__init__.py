"""What a user declares: frozen models of a stream, how they are loaded, and what they become in Iceberg."""

from __future__ import annotations
