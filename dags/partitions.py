"""Complete partitions: one DAG for each table whose windows of event time complete, `frazil_partitions_<table>`.

Each minute it checks the table's metadata, runs the quality gate of complete windows (`include/expectations/`), and
sends the events that daily aggregations start from. `frazil_release` signals a window that a gate holds. Requires
the streams' YAML files (FRAZIL_STREAMS names another folder, FRAZIL_EXPECTATIONS the folder of the gates' suites).
FRAZIL_CHECK_EVERY is the interval between checks, in seconds. To be notified of held windows, pass a notifier as
`on_failure=`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from frazil.airflow import partition_dags

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")
EXPECTATIONS = Path(os.environ.get("FRAZIL_EXPECTATIONS") or CHECKOUT / "include" / "expectations")
EVERY = timedelta(seconds=int(os.environ.get("FRAZIL_CHECK_EVERY") or 60))

globals().update(partition_dags(STREAMS, expectations=EXPECTATIONS, every=EVERY))
