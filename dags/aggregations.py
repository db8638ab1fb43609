"""The daily aggregations: for each that `include/aggregations/` declares, `frazil_daily_<name>` runs a day when it is
complete, and `frazil_reopened_<name>` asks for it again when late rows arrive.

What must exist: the declarations (next to the folder of streams, or where FRAZIL_AGGREGATIONS says), the streams that
feed their sources (FRAZIL_STREAMS), and the Airflow connection `spark_default`, with Iceberg's runtime in that Spark.
For a message when a day could not be aggregated, pass `on_failure=` a notifier.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import daily_dags

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")
AGGREGATIONS = Path(os.environ.get("FRAZIL_AGGREGATIONS") or STREAMS.parent / "aggregations")

globals().update(daily_dags(AGGREGATIONS, streams=STREAMS))
