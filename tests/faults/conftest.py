"""What fault tests share: an Airflow installation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.dev.airflow import EmbeddedAirflow

CHECKOUT = Path(__file__).resolve().parents[2]


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
