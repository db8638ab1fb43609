"""Great Expectations suites and gates (arrives with partition signals)."""

from __future__ import annotations
