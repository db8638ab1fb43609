"""The only way into a table: journal, marker and committer; take-over, dead letters and audit."""

from __future__ import annotations
