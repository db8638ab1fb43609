"""`make demo`: a year of real flights through Kafka, the writer and Airflow, checked to the last row."""

from __future__ import annotations
