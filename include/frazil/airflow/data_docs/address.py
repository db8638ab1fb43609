"""Defines the locations of the quality gates' pages: the workers' folder, and the URL in Airflow's UI.

Gates write the pages to a folder below FRAZIL_HOME. If workers and the API server are different hosts, both must have
this folder.
"""

from __future__ import annotations

from pathlib import Path

from airflow.configuration import conf

from frazil.home import home

PREFIX = "/frazil/data-docs"
"""The path of the pages' URL on the API server; `frazil.airflow.data_docs.app` serves it."""


def docs_folder() -> Path:
    """Return the folder to which gates write their pages."""
    return home() / "data-docs"


def docs_url(page: str) -> str:
    """Return the URL of a page, given as its path in the folder."""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    return f"{base}{PREFIX}/{Path(page).relative_to(docs_folder())}"
