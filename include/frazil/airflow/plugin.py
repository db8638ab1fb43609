"""Registers the operations page, the Data Docs, and task buttons in Airflow's UI, by an entry point."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from frazil.airflow.data_docs import VIEW as DOCS_VIEW
from frazil.airflow.data_docs import data_docs
from frazil.airflow.page import address as page_address
from frazil.airflow.page.app import operations_page
from frazil.airflow.task_links import LINKS


class FrazilPlugin(AirflowPlugin):
    name = "frazil"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - Airflow's own shape
        {"app": operations_page(), "url_prefix": page_address.PREFIX, "name": "frazil operations"},
        {"app": data_docs(), "url_prefix": page_address.DOCS_PREFIX, "name": "frazil data docs"},
    ]
    external_views: list[Any] = [page_address.VIEW, DOCS_VIEW]  # noqa: RUF012 - as above
    operator_extra_links: list[Any] = [*LINKS]  # noqa: RUF012 - as above
