"""Configures the log of a process that frazil runs, such as a writer or a Spark application."""

from __future__ import annotations

import logging
import sys

from frazil.safe_text import safe

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class SafeFormatter(logging.Formatter):
    """Escapes terminal control characters in log lines, which may contain texts of users and producers."""

    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record))


def log_to_stderr(*, with_threads: bool = False) -> None:
    """Log to standard error: frazil's messages from INFO on, and warnings of noisy libraries."""
    log_format = LOG_FORMAT.replace("%(message)s", "[%(threadName)s] %(message)s") if with_threads else LOG_FORMAT
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for noisy in ("py4j", "pyiceberg", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
