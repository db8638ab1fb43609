"""Maintenance: `frazil_health` watches the tables, and `frazil_maintenance` maintains them.

Every hour, tables that need it get compaction of complete partitions, manifest rewrites and snapshot expiry; once a
day, orphan files are deleted. `maintenance` in the streams' YAML (FRAZIL_STREAMS names another folder) configures this.
Requires the Spark connection `spark_default` and, if FRAZIL_SPARK_POOL is set, a pool of that name. To be notified of
alerts, pass a notifier as `on_failure=`; for alerts that ended, one as `on_resolved=`.
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
