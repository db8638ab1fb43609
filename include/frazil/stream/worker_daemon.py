"""Replaces `pyspark.daemon`: forks Spark's Python workers from a process that has already imported what staging needs.

Spark often starts new workers, because idle workers end after a minute. A forking process must have no other threads,
open connections or Kafka clients. The threads of OpenBLAS and jemalloc are therefore disabled.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from importlib import import_module
from importlib.machinery import PathFinder

from frazil.fast_imports import fast_imports

MODULE = __name__
STAGE_MODULE = "frazil.stream.stage_rows"
LATE_IMPORTS = ("frazil.ingest.stage", "frazil.ingest.kafka_columns", "frazil.ingest.formats.json.decoder")
"""Modules that staging would import late. After an upgrade, a forked worker would mix versions."""
_ARCHIVE = re.compile(r"/((pyspark|py4j-[^/]*-src)\.zip|spark-core_[^/]*\.jar)(/|$)")
SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep OpenBLAS and jemalloc from starting threads."""


def preload() -> None:
    """Import what staging needs. If this fails, each worker tries again and reports the error."""
    os.environ |= SINGLE_THREADED
    _remove_archives_from_path()
    # Spark reads the daemon's port from standard output, so nothing else may be printed there. Imported objects are
    # excluded from garbage collection, which would copy the pages that workers share with the daemon.
    with contextlib.redirect_stdout(sys.stderr), fast_imports():
        try:
            import_module("pyspark.worker")
            import_module(STAGE_MODULE)
            for module in LATE_IMPORTS:
                import_module(module)
            import_module("frazil.ingest.compiled").start_compiler()
        except Exception:
            traceback.print_exc()


def _remove_archives_from_path() -> None:
    """Remove Spark's archives from the import path if PySpark is installed, to save CPU in each task."""
    folders = [path for path in sys.path if not _ARCHIVE.search(path)]
    if PathFinder.find_spec("pyspark", folders) and PathFinder.find_spec("py4j", folders):
        sys.path[:] = folders
        for path in filter(_ARCHIVE.search, [*sys.path_importer_cache]):
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    preload()
    from pyspark import daemon

    from frazil.stream.attempt import wrap_worker_main

    daemon.worker_main = wrap_worker_main(daemon.worker_main)
    daemon.manager()  # type: ignore[no-untyped-call]
