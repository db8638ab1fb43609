"""What the embedded Airflow runs with, and when it counts as healthy."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from frazil import extras
from frazil.dev.airflow import EmbeddedAirflow, find_unhealthy
from frazil.errors import MissingExtra, UnsupportedVersion

HEARTBEAT = "2026-01-01T12:00:00+00:00"
HEALTHY = {
    "metadatabase": {"status": "healthy"},
    "scheduler": {"status": "healthy", "latest_scheduler_heartbeat": HEARTBEAT},
    "triggerer": {"status": "healthy", "latest_triggerer_heartbeat": HEARTBEAT},
    "dag_processor": {"status": "healthy", "latest_dag_processor_heartbeat": HEARTBEAT},
}


@pytest.fixture
def airflow(tmp_path: Path) -> EmbeddedAirflow:
    return EmbeddedAirflow(tmp_path / "airflow", tmp_path / "checkout", extra={"TEA": "green"})


def test_airflow_is_healthy_when_every_component_reports_it() -> None:
    assert find_unhealthy(HEALTHY) == []
    assert find_unhealthy({**HEALTHY, "dag_processor": {"status": None}}) == ["dag-processor"]


def test_a_heartbeat_from_before_the_start_is_not_healthy() -> None:
    assert find_unhealthy(HEALTHY, datetime(2026, 1, 1, 11, 59, tzinfo=UTC)) == []
    late = find_unhealthy(HEALTHY, datetime(2026, 1, 1, 12, 1, tzinfo=UTC))
    assert late == ["scheduler", "triggerer", "dag-processor"]


def test_passwords_are_made_once_and_readable_by_their_owner_alone(airflow: EmbeddedAirflow) -> None:
    first = airflow.password
    assert EmbeddedAirflow(airflow.home, airflow.checkout).password == first
    assert len({first, airflow.password_for("op"), airflow.password_for("viewer")}) == 3
    for name in ("passwords.json", "secrets.json"):
        assert (airflow.home / name).stat().st_mode & 0o077 == 0


def test_an_airflow_that_is_missing_or_not_supported_is_reported_before_anything_is_written(
    airflow: EmbeddedAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "version", lambda _: "3.2.2")
    with pytest.raises(UnsupportedVersion, match=r"Airflow 3\.2\.2 is installed"):
        airflow.start()
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'frazil\[airflow\]'"):
        airflow.start()
    assert not airflow.home.exists()


def test_every_address_in_the_airflow_environment_is_the_loopback(airflow: EmbeddedAirflow) -> None:
    environment = airflow.environment()
    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == f"http://127.0.0.1:{airflow.port}/execution/"
    assert environment["TEA"] == "green"


def test_the_embedded_airflow_ignores_settings_of_another_airflow(
    airflow: EmbeddedAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW__SMTP__SMTP_HOST", "mail")
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA", "kafka://somewhere")
    environment = airflow.environment()
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert "AIRFLOW__SMTP__SMTP_HOST" not in environment
    assert environment["AIRFLOW_CONN_KAFKA"] == "kafka://somewhere"


def test_home_and_streams_folders_are_passed_to_airflow_as_absolute_paths(
    airflow: EmbeddedAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", "relative")
    monkeypatch.setenv("FRAZIL_STREAMS", "mine")
    environment = airflow.environment()
    assert environment["FRAZIL_HOME"] == str(Path.cwd() / "relative")
    assert environment["FRAZIL_STREAMS"] == str(Path.cwd() / "mine")
    monkeypatch.delenv("FRAZIL_STREAMS")
    assert airflow.environment()["FRAZIL_STREAMS"] == str(airflow.checkout / "include" / "streams")
