"""Maintenance: `frazil_health` watches the tables, and `frazil_maintenance` keeps them in shape.

Every hour, of each table that needs it: compaction of complete partitions, manifests, snapshot expiry; once a day
orphan files. `maintenance` in the streams' YAML says what is done (FRAZIL_STREAMS names another folder). What must be
there: the Spark connection `spark_default`, and, where FRAZIL_SPARK_POOL names one, a pool for batch Spark work. To be
told when something is wrong, pass `on_failure=` a notifier, and `on_resolved=` one that is called when it is over.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import health_dag, maintenance_dag

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")
AGGREGATIONS = Path(os.environ.get("FRAZIL_AGGREGATIONS") or STREAMS.parent / "aggregations")
EXPECTATIONS = Path(os.environ.get("FRAZIL_EXPECTATIONS") or STREAMS.parent / "expectations")

maintenance = maintenance_dag(STREAMS)
health = health_dag(STREAMS, aggregations=AGGREGATIONS, expectations=EXPECTATIONS)
