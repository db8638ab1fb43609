"""What all tests of faults share: which of the two readers of Kafka's ranges a test's writers have."""

from __future__ import annotations

from zlib import crc32

import pytest

from frazil.ingest.readers import READER_VARIABLE


@pytest.fixture(autouse=True)
def reader_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """About half of the tests read message objects, always the same ones; tests of `each_reader` run with both.

    It holds for writers in this process and in its children, and for Python workers of the session's Spark. Writers
    that Airflow starts have the environment of Airflow.
    """
    if "each_reader" in request.fixturenames or crc32(request.node.name.encode()) % 2:
        return
    monkeypatch.setenv(READER_VARIABLE, "messages")
    if "spark" in request.fixturenames:
        # Spark hands this to Python workers, and keeps workers of one environment apart from those of another.
        monkeypatch.setitem(request.getfixturevalue("spark").sparkContext.environment, READER_VARIABLE, "messages")
