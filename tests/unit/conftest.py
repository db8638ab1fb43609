"""Fixtures of all fast tests: a SQL catalog without SQLAlchemy's statements, a short timeout for missing brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from frazil.kafka.admin import TIMEOUT_S, KafkaAdmin
from tests.plain_catalog import catalogs_with, chosen

NO_BROKER = "127.0.0.1:1"
SILENT_AFTER_S = 0.1
"""How long a test waits for the broker that does not exist."""


@pytest.fixture(scope="module", autouse=True)
def _plain_catalog() -> Iterator[None]:
    with catalogs_with(chosen()):
        yield


@pytest.fixture(autouse=True)
def _silent_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = KafkaAdmin.__init__

    def open_briefly(self: KafkaAdmin, properties: Any, *topics: Any, timeout_s: float = TIMEOUT_S, **of: Any) -> None:
        if properties.get("bootstrap.servers") == NO_BROKER:
            timeout_s = min(timeout_s, SILENT_AFTER_S)
        opened(self, properties, *topics, timeout_s=timeout_s, **of)

    monkeypatch.setattr(KafkaAdmin, "__init__", open_briefly)
