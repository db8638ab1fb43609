"""The state of a stream, for the command line and for pages."""

from __future__ import annotations
