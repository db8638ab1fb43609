"""Where the operations page is on Airflow's API server, and how it is linked from there."""

from __future__ import annotations

from airflow.configuration import conf

PREFIX = "/frazil/ops"
VIEW = {
    "name": "Streams",
    "href": f"{PREFIX}/index.html",
    "destination": "nav",
    "url_route": "frazil-streams",
}


def base_url() -> str:
    """Where people reach Airflow, without a slash at the end; empty where `[api] base_url` does not say."""
    return conf.get("api", "base_url", fallback="").rstrip("/")


def page_url() -> str:
    """The operations page's; empty where Airflow's is not known."""
    return f"{base_url()}{PREFIX}/index.html" if base_url() else ""
