"""The audits: one DAG, `frazil_audits`, for every stream that `include/streams/` declares.

Each hour it checks that all records committed in the last complete hour are in their tables exactly once. It reads the
Kafka coordinates in the workers, and needs neither Spark nor, by default, Kafka. A finding fails the stream's own task
and sends an event of the asset `frazil.audit.<stream>`. It needs the streams' YAML files (FRAZIL_STREAMS names another
folder). To be notified of findings, pass a notifier as `on_failure=`.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import audit_dag

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")

dag = audit_dag(STREAMS)
