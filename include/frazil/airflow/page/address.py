"""The URLs of the operations page and the quality gates' pages on Airflow's API server."""

from __future__ import annotations

from pathlib import Path

from airflow.configuration import conf

from frazil.home import home

PREFIX, DOCS_PREFIX = "/frazil/ops", "/frazil/data-docs"
VIEW = {"name": "Streams", "href": f"{PREFIX}/index.html", "destination": "nav", "url_route": "frazil-streams"}


def base_url() -> str:
    """Return Airflow's address for users, without a slash at the end; empty without `[api] base_url`."""
    return conf.get("api", "base_url", fallback="").rstrip("/")


def page_url() -> str:
    return f"{base_url()}{PREFIX}/index.html" if base_url() else ""


def docs_folder() -> Path:
    """Return the folder of the quality gates' pages, which all hosts share."""
    return home() / "data-docs"


def docs_url(page: str) -> str:
    return f"{base_url()}{DOCS_PREFIX}/{Path(page).relative_to(docs_folder())}"
