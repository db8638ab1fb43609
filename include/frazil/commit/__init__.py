"""Journals, markers, take-overs and commits. No other package writes to the streams' tables."""

from __future__ import annotations
