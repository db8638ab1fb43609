"""Registers what frazil adds to Airflow's UI: the Data Docs of the quality gates. Airflow finds it by entry point."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from frazil.airflow.data_docs.address import PREFIX
from frazil.airflow.data_docs.app import VIEW, data_docs


class FrazilPlugin(AirflowPlugin):
    """Loaded by the API server wherever frazil is installed; the entry point is in pyproject.toml."""

    name = "frazil"
    fastapi_apps: list[Any] = [{"app": data_docs(), "url_prefix": PREFIX, "name": "frazil data docs"}]  # noqa: RUF012
    external_views: list[Any] = [VIEW]  # noqa: RUF012 - Airflow's own shape
