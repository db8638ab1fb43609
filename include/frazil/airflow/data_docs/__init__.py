"""The pages of the quality gates: their folder below FRAZIL_HOME, which all hosts share, and their URL."""

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
