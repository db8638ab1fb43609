"""Opens catalogs and tables, creates and evolves tables, and accesses their storage."""

from __future__ import annotations
