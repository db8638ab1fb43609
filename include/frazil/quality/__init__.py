"""Runs the quality gate, which checks a complete window with Great Expectations before the window is signalled."""

from __future__ import annotations
