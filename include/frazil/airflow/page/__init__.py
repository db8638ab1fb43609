"""The operations page inside Airflow's UI."""

from __future__ import annotations
