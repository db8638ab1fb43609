"""Turns off the short broker timeout of the other unit tests: tests of the client need its own timeouts."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _silent_brokers() -> None:
    pass
