"""The quality gates' pages: a folder below FRAZIL_HOME, which all hosts share, and the URL in Airflow's UI."""

from __future__ import annotations

from pathlib import Path

from airflow.configuration import conf

from frazil.home import home

PREFIX = "/frazil/data-docs"


def docs_folder() -> Path:
    return home() / "data-docs"


def docs_url(page: str) -> str:
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    return f"{base}{PREFIX}/{Path(page).relative_to(docs_folder())}"
