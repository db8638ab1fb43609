from __future__ import annotations

from tests.unit.commit.conftest import catalog, world

__all__ = ["catalog", "world"]
