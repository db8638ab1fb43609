"""The audits: one DAG for each stream that `include/streams/` declares, `frazil_audit_<stream>`.

Each hour it checks that what the stream's writer committed in the last complete hour is in its table exactly once, by
reading the Kafka coordinates in the workers; it needs neither Spark nor, by default, Kafka. A finding fails the run and
sends an event of the asset `frazil.audit.<stream>`. What must be there: the streams' YAML files (FRAZIL_STREAMS names
another folder). To be told when something is found, pass `on_failure=` a notifier.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import audit_dags

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")

globals().update(audit_dags(STREAMS))
