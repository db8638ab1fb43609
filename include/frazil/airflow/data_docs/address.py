"""Where the pages of the quality gates are: on disk for the workers, and in Airflow's UI for people.

Gates write them to a folder below FRAZIL_HOME. Where workers and the API server are different hosts, that must be one
that both see.
"""

from __future__ import annotations

from pathlib import Path

from airflow.configuration import conf

from frazil.home import home

PREFIX = "/frazil/data-docs"
"""Of the API server's paths; `frazil.airflow.data_docs.app` answers there."""


def docs_folder() -> Path:
    """Where gates write their pages."""
    return home() / "data-docs"


def docs_url(page: str) -> str:
    """The address of a page, which is a path below the folder."""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    return f"{base}{PREFIX}/{Path(page).relative_to(docs_folder())}"
