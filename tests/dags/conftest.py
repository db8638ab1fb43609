"""An Airflow home of the tests' own: importing Airflow makes its configuration there, and not in a person's home."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="frazil-airflow-"))
