"""Backfills: one DAG, `frazil_backfill`, triggered from its form or by the API, for every declared stream.

Requires the streams' YAML files (FRAZIL_STREAMS names another folder), the Airflow connection `spark_default`, and
`spark-submit` on the PATH of the workers. To be notified of a backfill that needs attention, pass a notifier as
`on_failure=`.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import backfill_dag

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")

dag = backfill_dag(STREAMS)
