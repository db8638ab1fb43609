"""No DAG of its own: an import error of this file says which declarations are broken, and removes no DAG.

The other DAG files go on with the last valid version of a broken declaration. What must be there: the streams' YAML
files (FRAZIL_STREAMS names another folder), and those of the aggregations (FRAZIL_AGGREGATIONS). The words airflow
and dag must stay in this file: Airflow's safe mode parses only files that contain them.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import check_declarations

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")
AGGREGATIONS = Path(os.environ.get("FRAZIL_AGGREGATIONS") or STREAMS.parent / "aggregations")

check_declarations(STREAMS, aggregations=AGGREGATIONS)
