"""The operations page's URL on Airflow's API server, and its link in Airflow's navigation."""

from __future__ import annotations

from airflow.configuration import conf

PREFIX = "/frazil/ops"
VIEW = {"name": "Streams", "href": f"{PREFIX}/index.html", "destination": "nav", "url_route": "frazil-streams"}


def base_url() -> str:
    """Return Airflow's address for users, without a slash at the end; empty without `[api] base_url`."""
    return conf.get("api", "base_url", fallback="").rstrip("/")


def page_url() -> str:
    return f"{base_url()}{PREFIX}/index.html" if base_url() else ""
