"""Code that runs on executors: it reads offset ranges of Kafka into Arrow, and writes Parquet that no table refers to
yet.
"""

from __future__ import annotations
