"""Code that runs on executors. It reads offset ranges from Kafka into Arrow tables, and writes these to staged Parquet
files.

The driver adds the files to a table later.
"""

from __future__ import annotations
