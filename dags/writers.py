"""The writers: one DAG for each stream that `include/streams/` declares, `frazil_writer_<stream>`.

Each run stands for a running writer: Airflow launches it as a detached process, watches it, and launches it again
when it dies. What must be there: the streams' YAML files (FRAZIL_STREAMS names another folder), and a triggerer on
the host where the writers are to run. FRAZIL_WRITER_QUEUE names the queue whose triggerers run them (see
docs/how-to/run-in-production.md). For a message when a writer needs attention, pass `on_failure=` a notifier.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import writer_dags

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")

globals().update(writer_dags(STREAMS, queue=os.environ.get("FRAZIL_WRITER_QUEUE")))
