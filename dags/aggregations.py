"""The daily aggregations. For each declaration in `include/aggregations/`, `frazil_daily_<name>` aggregates a complete
day, and `frazil_reopened_<name>` requests the day again when late rows arrive.

It needs the declarations, next to the folder of streams or in FRAZIL_AGGREGATIONS, and the streams that feed
their sources (FRAZIL_STREAMS). It also needs the Airflow connection `spark_default`, to a Spark with Iceberg's runtime.
To be notified of a day that could not be aggregated, pass a notifier as `on_failure=`.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import daily_dags

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")
AGGREGATIONS = Path(os.environ.get("FRAZIL_AGGREGATIONS") or STREAMS.parent / "aggregations")

globals().update(daily_dags(AGGREGATIONS, streams=STREAMS))
