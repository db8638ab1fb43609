"""The only package that writes to the streams' tables: journals, markers, take-overs and commits."""

from __future__ import annotations
