"""Tests of the client keep its own timeouts."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _silent_brokers() -> None:
    pass
