"""The quality gate: checks a complete window with Great Expectations before its signal goes out."""

from __future__ import annotations
