"""Dead letters: one DAG, `frazil_dead_letters`, triggered from its form or by the API, for every declared stream.

Requires the streams' YAML files (FRAZIL_STREAMS names another folder), and frazil with its Spark extra on the workers.
To be notified of a run that needs attention, pass a notifier as `on_failure=`.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import dead_letters_dag

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")

dag = dead_letters_dag(STREAMS)
