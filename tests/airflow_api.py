"""Airflow's REST API, with the calls that only tests need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from frazil.dev.airflow import AirflowClient, EmbeddedAirflow, Json
from frazil.errors import EnvironmentUnusable
from tests import polling

eventually = partial(polling.eventually, every_s=polling.OF_AIRFLOW_S)


class AirflowApi(AirflowClient):
    @classmethod
    def of(cls, airflow: EmbeddedAirflow, user: str = "admin") -> Self:
        return cls(airflow.url, user=user, password=airflow.password_for(user))

    def dags(self, **params: str | int | bool) -> list[Json]:
        """Return the first 100 DAGs. `params` are query parameters."""
        return self._list("/api/v2/dags", "dags", params)

    def import_errors(self) -> list[Json]:
        return self._list("/api/v2/importErrors", "import_errors", {})

    def wait_for_dag(self, dag_id: str, *, timeout_s: float = 60) -> Json:
        """Wait until a DAG is parsed. At the timeout, raises EnvironmentUnusable with the import errors."""

        def find_dag() -> Json | None:
            return next((dag for dag in self.dags(limit=1000, exclude_stale=True) if dag["dag_id"] == dag_id), None)

        try:
            return dict(eventually(find_dag, within_s=timeout_s))
        except AssertionError:
            reasons = "; ".join(f"{e['filename']}: {e['stack_trace'].splitlines()[-1]}" for e in self.import_errors())
            missing = f"the DAG {dag_id} did not appear within {timeout_s:.0f} s"
            raise EnvironmentUnusable(f"{missing}. {reasons or 'Airflow has no import errors'}") from None

    def set_paused(self, dag_id: str, paused: bool) -> Json:
        return self.call("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": paused})

    def _list(self, path: str, key: str, params: Mapping[str, str | int | bool]) -> list[Json]:
        found: list[Json] = self.call("GET", path, params={"limit": 100, **params})[key]
        return found

    def dag(self, dag_id: str) -> Json:
        return self.call("GET", f"/api/v2/dags/{dag_id}")

    def runs(self, dag_id: str, **params: str | int | bool) -> list[Json]:
        """Return the runs of a DAG, oldest first."""
        return self._list(f"/api/v2/dags/{dag_id}/dagRuns", "dag_runs", {"order_by": "run_after", **params})

    def run(self, dag_id: str, run_id: str) -> Json:
        return self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")

    def trigger(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, partition_key: str | None = None) -> Json:
        body = {"logical_date": None, "conf": dict(conf or {}), "partition_key": partition_key}
        return self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=body)

    def tasks(self, dag_id: str, run_id: str) -> list[Json]:
        return self._list(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances", "task_instances", {})

    def mark_task(self, dag_id: str, run_id: str, task_id: str, state: str) -> Json:
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        return self.call("PATCH", path, json={"new_state": state})

    def clear(self, dag_id: str, run_id: str, *task_ids: str) -> Json:
        """Clear the given tasks of a run, or all its tasks if none are given, as the UI does."""
        body: Json = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True}
        if task_ids:
            body["task_ids"] = list(task_ids)
        return self.call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", json=body)

    def log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return the log events of a task's newest try, one per line, as the UI shows them."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        tried = self.call("GET", path)["try_number"] or 1
        lines = self.call("GET", f"{path}/logs/{tried}", params={"full_content": True})["content"]
        return "\n".join(str(line.get("event", line)) if isinstance(line, dict) else str(line) for line in lines)
