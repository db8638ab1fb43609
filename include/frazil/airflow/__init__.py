"""Operators, triggers and DAG factories: the only room that imports Airflow."""

from __future__ import annotations
