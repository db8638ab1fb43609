"""What all fast tests share: a SQL catalog without SQLAlchemy's statements, and brokers that soon count as silent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from frazil.kafka.admin import KafkaOffsets
from tests.plain_catalog import catalogs_with, chosen

SILENT_AFTER_S = 0.1
"""Seconds for which a test waits for a broker that does not exist."""


@pytest.fixture(scope="module", autouse=True)
def _plain_catalog() -> Iterator[None]:
    with catalogs_with(chosen()):
        yield


@pytest.fixture(autouse=True)
def _silent_brokers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "kafka" in request.fixturenames:
        return
    opened = KafkaOffsets.__init__

    def open_briefly(self: KafkaOffsets, *arguments: Any, timeout_s: float = SILENT_AFTER_S, **named: Any) -> None:
        opened(self, *arguments, timeout_s=min(timeout_s, SILENT_AFTER_S), **named)

    monkeypatch.setattr(KafkaOffsets, "__init__", open_briefly)
