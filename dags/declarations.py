"""Defines no DAG: an import error of this file shows which declarations are broken, without removing any DAG.

The other DAG files continue with the last valid version of a broken declaration. Requires the YAML files of the streams
(FRAZIL_STREAMS names another folder) and of the aggregations (FRAZIL_AGGREGATIONS). The words airflow and dag must stay
in this file: Airflow's safe mode parses only files that contain them.
"""

from __future__ import annotations

import os
from pathlib import Path

from frazil.airflow import check_declarations

CHECKOUT = Path(__file__).resolve().parents[1]
STREAMS = Path(os.environ.get("FRAZIL_STREAMS") or CHECKOUT / "include" / "streams")
AGGREGATIONS = Path(os.environ.get("FRAZIL_AGGREGATIONS") or STREAMS.parent / "aggregations")

check_declarations(STREAMS, aggregations=AGGREGATIONS)
