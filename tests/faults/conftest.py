"""What fault tests share: the choice of the Kafka reader for a test's writers, and an Airflow installation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from frazil.dev.airflow import EmbeddedAirflow
from frazil.ingest.readers import READER_VARIABLE

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def reader_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read message objects in about half of the tests, always the same ones. Tests with `each_reader` use both readers.

    This applies to writers in this process and its children, and to the Python workers of the session's Spark. Writers
    that Airflow starts have Airflow's environment.
    """
    if "each_reader" in request.fixturenames or crc32(request.node.name.encode()) % 2:
        return
    monkeypatch.setenv(READER_VARIABLE, "messages")
    if "spark" in request.fixturenames:
        # Spark hands this to Python workers, and keeps workers of one environment apart from those of another.
        monkeypatch.setitem(request.getfixturevalue("spark").sparkContext.environment, READER_VARIABLE, "messages")


@pytest.fixture(scope="session")
def shared_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedAirflow]:
    """An Airflow without DAGs. `test_dev_airflow.py` tests it; then `test_supervision.py` adds writers, and ends it."""
    root = tmp_path_factory.mktemp("shared-airflow")
    for folder in ("streams", "dags", "real/streams"):
        (root / folder).mkdir(parents=True)
    extra = {
        "FRAZIL_HOME": str(root / "frazil"),
        "FRAZIL_STREAMS": str(root / "streams"),
        "FRAZIL_TEST_APPLICATION": str(CHECKOUT / "tests" / "unit" / "host" / "fake_writer.py"),
        "FRAZIL_TEST_REAL": str(root / "real" / "streams"),
        "FRAZIL_TEST_WRITER": str(CHECKOUT / "tests" / "writer_without_jvm.py"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }
    with EmbeddedAirflow(root / "airflow", CHECKOUT, dags=root / "dags", extra=extra) as started:
        yield started
