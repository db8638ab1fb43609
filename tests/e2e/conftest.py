"""Gate requests; and a fixture that removes waits and child processes, which other tests cover."""

from __future__ import annotations

import pytest

from frazil.stream import outage
from tests.gate_requests import ask

__all__ = ["ask"]


@pytest.fixture(autouse=True)
def _short_waits(in_this_process: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """Retry soon after an outage, and replay without child processes (`tests/faults/test_isolate.py` has these)."""
    monkeypatch.setattr(outage, "MAX_OUTAGE_WAIT_S", 1.0)
