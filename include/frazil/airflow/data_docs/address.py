"""Locations of the quality gates' pages: on disk for workers, in Airflow's UI for people.

Gates write them to a folder below FRAZIL_HOME. If workers and the API server are different hosts, both must see it.
"""

from __future__ import annotations

from pathlib import Path

from airflow.configuration import conf

from frazil.home import home

PREFIX = "/frazil/data-docs"
"""The path on the API server, served by `frazil.airflow.data_docs.app`."""


def docs_folder() -> Path:
    """The folder where gates write their pages."""
    return home() / "data-docs"


def docs_url(page: str) -> str:
    """The URL of a page, given as a path below the folder."""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    return f"{base}{PREFIX}/{Path(page).relative_to(docs_folder())}"
