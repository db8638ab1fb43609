"""Runs of batch jobs are reported in pairs, and never wait for an unavailable backend."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from frazil.lineage import jobs as module
from frazil.lineage.facts import Dataset, LineageSettings, LineageState, RunFacts, Totals
from frazil.lineage.jobs import JobReporter, openlineage_jobs
from tests.lineage_backend import tracing

NOW = 1_800_000_000_000
ON = {"OPENLINEAGE_URL": "http://127.0.0.1:1"}
RUN_ID = "01941f29-7c00-7000-8000-000000000001"


class Backend:
    """The events that were sent, by job, through clients that fail or hang on request."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, LineageState]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def connect(self, _: LineageSettings, job: str) -> Any:
        backend = self

        class Client:
            def send(self, state: LineageState, at_ms: int, reported: RunFacts) -> None:  # noqa: ARG002
                backend.meanwhile()
                backend.sent.append((job, state))

            def close(self, timeout_s: float) -> None: ...

        return Client()


def test_a_lineage_run_is_a_start_and_end_event_with_inputs_and_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Dataset("s3://lake", "shop/sales", "shop.sales", "http://catalog", (("at", "timestamptz"),), 41)
    target = Dataset("s3://lake", "shop/days", "shop.days", "http://catalog")
    with tracing(monkeypatch) as received:
        monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/daily.aggregate/{RUN_ID}")
        with openlineage_jobs() as jobs:
            assert jobs is not None
            run = jobs.run("aggregation.sales")
            run.started(NOW, RunFacts((source,), day=date(2013, 12, 30)))
            run.ended(NOW + 5, RunFacts((source,), target, Totals(3, 400, 1, 42), day=date(2013, 12, 30)))
    started, ended = received
    assert (started["eventType"], ended["eventType"]) == ("START", "COMPLETE")
    assert started["run"]["runId"] == ended["run"]["runId"]
    assert ended["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert started["run"]["facets"]["parent"]["job"]["name"] == "daily.aggregate"
    nominal = ended["run"]["facets"]["nominalTime"]
    assert nominal["nominalStartTime"] == "2013-12-30T00:00:00+00:00"
    assert nominal["nominalEndTime"] == "2013-12-31T00:00:00+00:00"
    assert started["inputs"][0]["facets"]["version"]["datasetVersion"] == "41"
    assert started["outputs"] == []
    (out,) = ended["outputs"]
    assert (out["name"], out["facets"]["version"]["datasetVersion"]) == ("shop/days", "42")
    assert out["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert out["outputFacets"]["subset"]["outputCondition"]["partitions"][0]["dimensions"] == {"day": "2013-12-30"}


def test_lineage_is_not_reported_without_a_declared_backend() -> None:
    with openlineage_jobs({}) as jobs:
        assert jobs is None


def test_three_hundred_runs_are_reported_twice_over_each_as_its_own() -> None:
    backend = Backend()
    with openlineage_jobs(ON, connect=backend.connect) as jobs:
        assert jobs is not None
        for number in range(300):
            for _ in range(2):
                run = jobs.run(f"maintenance.t{number}")
                run.started(NOW, RunFacts())
                run.ended(NOW, RunFacts(error="it broke" if number == 7 else None))
    assert len(backend.sent) == 1_200
    assert [one for one in backend.sent if one[1] is LineageState.FAIL] == [("maintenance.t7", LineageState.FAIL)] * 2


def test_a_hanging_lineage_backend_does_not_delay_process_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, forever = Backend(), threading.Event()
    backend.meanwhile = lambda: forever.wait() and None
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(module, "MAX_QUEUED_EVENTS", 10)
    began = time.monotonic()
    with openlineage_jobs(ON, connect=backend.connect) as jobs:
        assert jobs is not None
        for _ in range(300):
            run = jobs.run("aggregation.sales")
            run.started(NOW, RunFacts())
            run.ended(NOW, RunFacts())
    assert time.monotonic() - began < 5
    assert backend.sent == []
    forever.set()


def test_a_refusing_lineage_backend_is_reported_once_and_gets_start_and_end_events_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend, answers = Backend(), iter([OSError("500"), OSError("500"), None, None])

    def meanwhile() -> None:
        if (error := next(answers, None)) is not None:
            raise error

    backend.meanwhile = meanwhile
    with openlineage_jobs(ON, connect=backend.connect) as jobs:
        assert jobs is not None
        for name in ("lost", "late"):
            run = jobs.run(name)
            run.started(NOW, RunFacts())
            run.ended(NOW, RunFacts())
    # The first run is over when the second try of its start fails; the second is reported whole.
    assert backend.sent == [("late", LineageState.START), ("late", LineageState.COMPLETE)]
    assert [r.levelno for r in caplog.records if "OpenLineage" in r.getMessage()] == [logging.WARNING]


def test_a_missing_client_library_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def missing(*_: Any) -> Any:
        raise ModuleNotFoundError("No module named 'openlineage'. Install frazil[lineage]")

    with openlineage_jobs(ON, connect=missing) as jobs:
        assert isinstance(jobs, JobReporter)
        run = jobs.run("aggregation.sales")
        run.started(NOW, RunFacts())
        run.ended(NOW, RunFacts())
    assert caplog.text.count("Install frazil[lineage]") == 1
