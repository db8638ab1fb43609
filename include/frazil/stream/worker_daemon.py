"""The process that forks Spark's Python workers, with what a stage needs imported once, before it forks.

Spark ends Python workers that were idle for a minute. A stream that commits once a minute would import everything anew
in each batch: seconds, and several CPU seconds. Spark starts this module in place of `pyspark.daemon`, by the property
`spark.python.daemon.module`, on the driver's host and on executors.

A fork copies the thread that forks and no other, so no thread may run here and no connection may be open: no Kafka
client is made before the fork. OpenBLAS and jemalloc, which start threads as soon as NumPy and PyArrow are imported,
are told not to.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import traceback
from importlib import import_module
from importlib.machinery import PathFinder

MODULE = __name__
STAGE = "frazil.stream.stage_rows"
COLUMNS = "frazil.ingest.kafka_columns"
"""Stage imports it late, for a process may be unable to."""
_ARCHIVE = re.compile(r"/(pyspark|py4j-[^/]*-src)\.zip$")
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def preload() -> None:
    """Import what a stage needs. A worker of a daemon that could not do so imports for itself, and fails by itself."""
    os.environ |= WITHOUT_THREADS
    _leave_out_archives()
    # Standard output tells Spark the daemon's port, and nothing else may be in it.
    with contextlib.redirect_stdout(sys.stderr):
        gc.disable()
        try:
            import_module("pyspark.worker")
            import_module(STAGE)
            import_module(COLUMNS)
            import_module("frazil.ingest.compiled").start_compiler()
        except Exception:
            traceback.print_exc()
        gc.enable()
    # What is imported is no garbage: a collection in a worker would copy the pages that it shares with the daemon.
    gc.freeze()


def _leave_out_archives() -> None:
    """Import PySpark and Py4J from where they are installed, if they are: in Spark's zip files nothing is compiled."""
    others = [path for path in sys.path if not _ARCHIVE.search(path)]
    if PathFinder.find_spec("pyspark", others) and PathFinder.find_spec("py4j", others):
        sys.path[:] = others


if __name__ == "__main__":
    preload()
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
