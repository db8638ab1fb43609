"""Checks, before the first batch, that a cluster's executors can run the tasks of this driver."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from frazil import __version__
from frazil.errors import EnvironmentUnusable
from frazil.spec.model import StreamSpec

MISSING = {
    "No module named 'frazil'": "has no frazil",
    "No module named frazil": "has no frazil",
    "Cannot run program": "is missing there",
    "PYTHON_VERSION_MISMATCH": "is of another version than the driver's",
}
"""Maps Spark's message for a task that cannot start to frazil's text, which follows "their Python"."""


def check_executors(context: SparkContext, spec: StreamSpec) -> None:
    """Run a tiny task in each slot, which waits for the executors and starts their Python workers.

    Raises EnvironmentUnusable if Python or frazil is missing there, or differs from the driver's.
    """
    try:
        slots = spec.resources.cores
        answers = context.parallelize(range(slots), slots).mapPartitions(_probe()).collect()
    except Exception as error:
        if said := next((ours for theirs, ours in MISSING.items() if theirs in str(error)), None):
            raise EnvironmentUnusable(_refusal(spec, context.pythonExec, said)) from error
        raise
    if found := unlike(json.loads(answer) for answer in set(answers)):
        raise EnvironmentUnusable(_refusal(spec, context.pythonExec, found))


def unlike(answers: Iterable[dict[str, str]]) -> str | None:
    """Return how an executor's frazil differs from the driver's; None if all are the same."""
    for answer in answers:
        if "missing" in answer:
            return f"cannot stage records on {answer['host']}: {answer['missing']}"
        if answer["frazil"] != __version__:
            return f"has frazil {answer['frazil']} on {answer['host']}, and the driver has {__version__}"
    return None


def _refusal(spec: StreamSpec, python: str, said: str) -> str:
    package = spec.resources.package
    what = (
        f"make {package} again with `frazil package`, by the driver's Python"
        if package
        else "let resources.package name the archive that `frazil package` makes, or install the same there"
    )
    driver = f"Python {sys.version_info.major}.{sys.version_info.minor} with frazil {__version__}"
    return (
        f"stream {spec.name!r} cannot run on the executors of {spec.resources.master}: their Python {python} {said}. "
        f"The driver is {driver}. Nothing was read or taken over: {what}"
    )


def _probe() -> Callable[[Iterable[int]], Iterator[str]]:
    """Return the function that the probe's tasks run.

    A nested function is pickled by value, so executors can load it even without frazil.
    """

    def probe(_: Iterable[int]) -> Iterator[str]:
        import json  # noqa: PLC0415 - runs on the executor, without this module's imports
        import socket  # noqa: PLC0415

        found = {"host": socket.gethostname()}
        try:
            import frazil  # noqa: PLC0415
            import frazil.stream.stage_rows  # noqa: PLC0415

            found["frazil"] = frazil.__version__
        except ImportError as error:
            found["missing"] = str(error)
        yield json.dumps(found)

    return probe


log = logging.getLogger(__name__)

POLL_INTERVAL_S = 30.0
"""Interval of the checks for executors. One check without executors is normal: new ones may be about to arrive."""


@contextmanager
def report_if_lost(
    executors: Callable[[], int], sentence: str, *, poll_interval_s: float = POLL_INTERVAL_S
) -> Iterator[None]:
    """Log `sentence` if two checks in a row find no executor while a batch runs.

    `executors` returns the number of executors. The checks end with the context, or when `executors` raises an error.
    """
    over = threading.Event()

    def watch() -> None:
        missing = 0
        while not over.wait(poll_interval_s):
            try:
                found = executors()
            except Exception as error:  # the JVM is gone, which the batch itself reports
                log.debug("executors cannot be counted: %r", error)
                return
            if found:
                if missing > 1:
                    log.warning("the batch has %d executors again", found)
                missing = 0
                continue
            missing += 1
            if missing > 1:
                log.warning("%s", sentence)

    thread = threading.Thread(target=watch, name="executors", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
