from __future__ import annotations

from tests.unit.spec.conftest import declare

__all__ = ["declare"]
