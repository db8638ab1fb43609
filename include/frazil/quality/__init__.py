"""The quality gate: Great Expectations on one complete window of event time, before its signal goes out."""

from __future__ import annotations
