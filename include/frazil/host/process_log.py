"""The log of a process that frazil runs: a writer, a writer application, or an application for spark-submit."""

from __future__ import annotations

import logging
import sys

FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr(*, with_threads: bool = False) -> None:
    """Log frazil's own messages, and warnings of others, to standard error."""
    form = FORM.replace("%(message)s", "[%(threadName)s] %(message)s") if with_threads else FORM
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=form)
    for noisy in ("py4j", "pyiceberg", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
