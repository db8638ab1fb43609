from __future__ import annotations

from tests.unit.host.conftest import at_hand, streams

__all__ = ["at_hand", "streams"]
