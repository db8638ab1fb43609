"""The log of a process that frazil runs: a writer, a writer application, or an application for spark-submit."""

from __future__ import annotations

import logging
import sys

from frazil.safe_text import safe

FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class SafeFormatter(logging.Formatter):
    """Escapes terminal control characters in log texts that come from users and producers."""

    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record))


def log_to_stderr(*, with_threads: bool = False) -> None:
    """Log frazil's own messages, and warnings of other libraries, to standard error."""
    form = FORM.replace("%(message)s", "[%(threadName)s] %(message)s") if with_threads else FORM
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for noisy in ("py4j", "pyiceberg", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
