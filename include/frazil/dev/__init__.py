"""Embedded Kafka and Airflow for `frazil dev`, the demo, tests and benchmarks."""

from __future__ import annotations
