"""Property tests use the SQL catalog of the unit tests."""

from __future__ import annotations

from tests.unit.conftest import _plain_catalog

__all__ = ["_plain_catalog"]
