"""No DAG of its own: an import error of this file says which declarations are broken, and removes no DAG.

The other DAG files go on with what a broken file said when it was sound last. What must be there: the streams' YAML
files (FRAZIL_STREAMS names another folder), and those of the aggregations (FRAZIL_AGGREGATIONS). Airflow reads it, for
it says airflow and dag.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import check_declarations

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")
AGGREGATIONS = Path(os.environ.get("FRAZIL_AGGREGATIONS") or CHECKOUT / "include" / "aggregations")

check_declarations(STREAMS, aggregations=AGGREGATIONS)
