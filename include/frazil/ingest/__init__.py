"""Code that runs on executors: reads offset ranges of Kafka into Arrow tables, and writes them to staged Parquet files.

The driver adds the files to a table later.
"""

from __future__ import annotations
