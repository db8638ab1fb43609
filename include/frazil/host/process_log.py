"""The log of a process that frazil runs: a writer, a writer application, or an application for spark-submit."""

from __future__ import annotations

import logging
import sys


def log_to_stderr(*, with_threads: bool = False) -> None:
    """Log frazil's own messages, and warnings of others, to standard error."""
    thread = "[%(threadName)s] " if with_threads else ""
    form = f"%(asctime)s %(levelname)s %(name)s: {thread}%(message)s"
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=form)
    for noisy in ("py4j", "pyiceberg", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
