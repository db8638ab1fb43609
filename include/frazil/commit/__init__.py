"""The only way into a table: journals, markers, take-overs and commits."""

from __future__ import annotations
