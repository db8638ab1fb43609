"""Code of executors: reads offset ranges from Kafka into Arrow tables, and stages these as Parquet files."""

from __future__ import annotations
