"""Code that runs on executors: reads offset ranges of Kafka into Arrow, and writes Parquet files, which are not yet
part of a table.
"""

from __future__ import annotations
