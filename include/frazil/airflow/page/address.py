"""Where the operations page is on Airflow's API server, and how it is linked from there."""

from __future__ import annotations

PREFIX = "/frazil/ops"
VIEW = {
    "name": "Streams",
    "href": f"{PREFIX}/index.html",
    "destination": "nav",
    "url_route": "frazil-streams",
}
