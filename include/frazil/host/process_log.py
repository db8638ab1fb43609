"""Configures how a process that frazil runs logs and reports its last error."""

from __future__ import annotations

import fcntl
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from frazil.errors import FrazilError, WriterBusy
from frazil.home import make_folder
from frazil.safe_text import escape_unsafe

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class SafeFormatter(logging.Formatter):
    """Escapes terminal control characters in log lines, which may contain strings from users and records."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_unsafe(super().format(record))


def log_to_stderr(*, with_threads: bool = False) -> None:
    """Log to standard error: frazil's messages at level INFO and above, but only warnings of verbose libraries."""
    log_format = LOG_FORMAT.replace("%(message)s", "[%(threadName)s] %(message)s") if with_threads else LOG_FORMAT
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for noisy in ("py4j", "pyiceberg", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Log to an empty file instead of standard error, until the `with` block ends. Raises WriterBusy as `claim_log`."""
    root = logging.getLogger()
    with claim_log(path) as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(SafeFormatter(LOG_FORMAT))
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)


@contextmanager
def claim_log(path: Path) -> Iterator[IO[str]]:
    """Lock a log file until the `with` block ends, and empty it. Raises WriterBusy if another process has locked it."""
    make_folder(path.parent)
    # A JVM appends to the file too. Without append mode, each would overwrite lines of the other.
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WriterBusy(f"the same command is running, and logs to {path}. Wait until it ends") from None
        file.truncate(0)
        yield file


@contextmanager
def exit_on_error() -> Iterator[None]:
    try:
        yield
    except FrazilError as error:
        print(escape_unsafe(f"{type(error).__name__}: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
