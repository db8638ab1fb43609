"""The only code that writes to tables: journals, markers, take-overs and commits."""

from __future__ import annotations
