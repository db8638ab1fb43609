"""The writers: one DAG for each stream that `include/streams/` declares, `frazil_writer_<stream>`.

Each run represents a running writer: Airflow launches it as a detached process, watches it, and restarts it when it
dies. Requires the streams' YAML files (FRAZIL_STREAMS names another folder), and a triggerer on the host where the
writers should run. FRAZIL_WRITER_QUEUE names the queue whose triggerers run them (see
docs/how-to/run-in-production.md). To be notified of a writer that needs attention, pass a notifier as `on_failure=`.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import writer_dags

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")

globals().update(writer_dags(STREAMS, queue=os.environ.get("FRAZIL_WRITER_QUEUE") or None))
