"""The driver of a writer in a cluster: writes the stream, and reports to its agent through the table's storage. It also
runs without an agent. It ends after its current batch if the stream is paused, if its order says so, or if the order
names another driver. It ends immediately if its JVM, the parent process, has ended.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from frazil import __version__
from frazil.errors import EnvironmentUnusable, FrazilError, error_text
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat
from frazil.host.process_log import LOG_FORMAT, SafeFormatter, log_to_stderr
from frazil.remote.driver_folder import DriverExit, DriverFolder, DriverReport, LogEnd, Order
from frazil.signals import read_pins
from frazil.spec.load import validate_stream
from frazil.stream.main import write
from frazil.supervise.decision import DesiredMode
from frazil.supervise.desired_state import DesiredStore
from frazil.table.catalogs import load_catalog

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 3.0
"""Seconds between two reports. A heartbeat without a report for ten seconds counts as stale."""
PAUSE_CHECK_INTERVAL_S = 30.0
"""Seconds between two checks for a pause. A running agent stops the driver sooner."""
MAX_LOG_BYTES = 64 * 1024
CRASHED_CODE = 1
TERMINATED_CODE = 128 + signal.SIGTERM
"""After a SIGTERM from the cluster. After 0, Kubernetes would drop the reason of an eviction."""
FOREIGN_SIGNAL = (
    "the driver received SIGTERM, but frazil did not request its end. Clusters send SIGTERM to delete or evict a "
    "driver, or to drain its node: see the cluster's events"
)
_STANDALONE_ID = re.compile(r"driver-\d{14}-\d+")
"""Matches a driver's id on a standalone cluster, whose workers run each driver in a folder of this name."""


def run_driver(stream: str, *, catalog: str, table: str, driver: str) -> int:
    """Run the writer until it is stopped or caught up. Return the exit code. Raises FrazilError."""
    log_to_stderr()
    end_with_parent(os.getppid())
    loaded = load_catalog(catalog)
    folder = DriverFolder.open(loaded.load_table(table), stream)
    order = folder.order()
    if order is None or order.id != driver:
        log.info("stream %r: a newer driver was submitted; this driver ends", stream)
        return 0
    if order.stop is not None:
        log.info("stream %r: %s, before the driver started; the driver ends", stream, order.stop)
        return 0
    # SIGTERM may arrive before the writer handles it, when nothing has started yet.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    def is_paused() -> bool:
        # Load the table again, because its credentials may expire after an hour.
        return DesiredStore(stream, loaded.load_table(table)).read().mode is DesiredMode.PAUSED

    with DriverReporter(folder, order, stream=stream, is_paused=is_paused) as reporter:
        try:
            check_version(order.wanted.version)
            spec = validate_stream(order.declared, Path(f"{stream}.yaml"))
            was_signalled = write(spec, until_caught_up=order.wanted.until_caught_up, read_pins=read_pins)
        except SystemExit:
            was_signalled = True
        except FrazilError as error:
            log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
            reporter.ended = DriverExit(error.exit_code, error_text(error))
            return error.exit_code
        except Exception as error:
            log.exception("the writer crashed")
            reporter.ended = DriverExit(CRASHED_CODE, error_text(error))
            raise
        reporter.ended = reporter.exit_after_sigterm() if was_signalled else DriverExit(0)
    return reporter.ended.code


def check_version(agent_version: str) -> None:
    if agent_version != __version__:
        raise EnvironmentUnusable(
            f"the driver in the cluster has frazil {__version__} in {sys.prefix}, but its agent has {agent_version}. "
            "The driver wrote nothing: install the same version there, or recreate resources.package with `frazil "
            "package`"
        )


class DriverReporter:
    """Publishes the writer's state and polls for the agent's orders in a thread, until the `with` block ends."""

    def __init__(  # noqa: PLR0913 - its folder and order, and two functions that tests replace
        self,
        folder: DriverFolder,
        order: Order,
        *,
        stream: str,
        is_paused: Callable[[], bool],
        stop: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
        interval_s: float = REPORT_INTERVAL_S,
    ) -> None:
        self.ended: DriverExit | None = None
        """How the writer ended; reported when the context ends."""
        self._folder, self._order, self._is_paused, self._stop = folder, order, is_paused, stop
        self._run_folder, self._interval_s = run_folder(stream), interval_s
        self._number = int(time.time() * 1000)  # above the numbers of an earlier process with the same order
        self.is_stopping = False
        """Whether the reporter has stopped the writer."""
        self._polled_s = float("-inf")
        self._tail = LogTail()
        self._logged = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver-reporter", daemon=True)

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._tail)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        logging.getLogger().removeHandler(self._tail)
        for wait_s in (1.0, 5.0, 15.0, 0.0):  # the agent also asks the cluster, if the storage stays down
            try:
                self._write_report(ended=self.ended)
                break
            except Exception as failure:
                log.warning("cannot report the driver's end: %s", failure)
                time.sleep(wait_s)

    def step(self) -> None:
        self._write_report(ended=None)
        if self.is_stopping:
            return
        if reason := self._stop_reason():
            log.info("%s: the writer ends after its current batch", reason)
            self.is_stopping = True
            self._stop()

    def exit_after_sigterm(self) -> DriverExit:
        """Return how the driver ended. An agent changes the order before it kills the driver."""
        order = None
        with suppress(Exception):  # the storage may be down
            order = self._folder.order()
        if self.is_stopping or (order is not None and order.id != self._order.id):
            return DriverExit(0)
        if order is None or order.stop is None:
            return DriverExit(TERMINATED_CODE, FOREIGN_SIGNAL)
        if order.kill:
            reason = f"the driver received SIGTERM because frazil's agent killed it: {order.stop}"
            return DriverExit(TERMINATED_CODE, reason)
        return DriverExit(0)

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            try:
                self.step()
            except Exception as error:  # the storage may be down for a while, which the writer reports itself
                log.info("cannot report to the driver's agent: %s", error)

    def _stop_reason(self) -> str | None:
        order = self._folder.order()
        if order is not None and order.id != self._order.id:
            return "a newer driver was submitted"
        if order is not None and order.stop is not None:
            return order.stop
        if time.monotonic() - self._polled_s >= PAUSE_CHECK_INTERVAL_S:
            self._polled_s = time.monotonic()
            if self._is_paused():
                return "the stream is paused"
        return None

    def _write_report(self, *, ended: DriverExit | None) -> None:
        end = self._tail.end()
        if end.bytes > self._logged:
            self._folder.put_log_end(self._order.id, end)
            self._logged = end.bytes
        self._number += 1
        heartbeat = Heartbeat.read(self._run_folder)
        report = DriverReport(self._number, heartbeat, find_own_submission(), end.bytes, ended)
        self._folder.write_report(self._order.id, report)


class LogTail(logging.Handler):
    def __init__(self, limit_bytes: int = MAX_LOG_BYTES) -> None:
        super().__init__()
        self.setFormatter(SafeFormatter(LOG_FORMAT))
        self._limit, self._text, self._bytes = limit_bytes, b"", 0

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode()
        self._bytes += len(line)
        self._text = (self._text + line)[-self._limit :]

    def end(self) -> LogEnd:
        """Return the end of the log. It begins with a whole line, unless this line is longer than the limit."""
        self.acquire()
        try:
            text, size = self._text, self._bytes
        finally:
            self.release()
        if len(text) < size and b"\n" in text[:-1]:
            text = text.partition(b"\n")[2]
        return LogEnd(text.decode(errors="replace"), size)


def find_own_submission() -> str | None:
    """Return the name that a standalone cluster gave this driver; None on other clusters."""
    name = Path.cwd().name
    return name if _STANDALONE_ID.fullmatch(name) else None


def end_with_parent(parent: int) -> None:
    """End this process when its parent, the JVM, has ended. A standalone cluster kills only the JVM."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        with suppress(OSError):
            os.write(2, b"the driver's JVM is gone: the driver ends\n")
        os._exit(137)  # as if the JVM's end had killed it

    threading.Thread(target=watch, name="parent", daemon=True).start()
