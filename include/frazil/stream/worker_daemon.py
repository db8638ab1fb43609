"""Replaces `pyspark.daemon`: forks Spark's Python workers from a process that has already imported what staging needs.

Spark often starts new workers, because idle workers end after a minute. A forking process must have no other threads,
open connections or Kafka clients. The threads of OpenBLAS and jemalloc are therefore disabled.

On a Linux host without a cluster, this process is a fork of the driver, which has already imported most of that. The
process that Spark starts hands its files and environment over to the fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

from frazil.fast_imports import fast_imports

MODULE = __name__
STAGE_MODULE = "frazil.stream.stage_rows"
LATE_IMPORTS = ("frazil.ingest.stage", "frazil.ingest.kafka_columns", "frazil.ingest.formats.json.decoder")
"""Modules that staging would import late. After an upgrade, a forked worker would mix versions."""
_ARCHIVE = re.compile(r"/((pyspark|py4j-[^/]*-src)\.zip|spark-core_[^/]*\.jar)(/|$)")
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
ADDRESS = "FRAZIL_DAEMON_ADDRESS"
"""Environment variable with the name of the abstract socket at which the driver's fork waits."""
PROCESS_NAME = "frazil-workers"
"""Name of the fork and its workers in `ps` and `top`. Their command line is the driver's."""


def preload() -> None:
    """Import what staging needs. If this fails, each worker tries again and reports the error."""
    os.environ |= WITHOUT_THREADS
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
    others = [path for path in sys.path if not _ARCHIVE.search(path)]
    if PathFinder.find_spec("pyspark", others) and PathFinder.find_spec("py4j", others):
        sys.path[:] = others
        for path in filter(_ARCHIVE.search, [*sys.path_importer_cache]):
            del sys.path_importer_cache[path]


@contextlib.contextmanager
def forked_daemon(*, local: bool) -> Iterator[AbstractContextManager[None]]:
    """After the block, which imports Spark and starts it in a thread, fork the daemon from this process.

    The thread must not import meanwhile, because the fork would inherit import locks. It enters the context that is
    yielded while it waits for the JVM. The fork happens within this context, or not at all.
    """
    if not local or sys.platform != "linux":
        yield contextlib.nullcontext()
        return
    os.environ |= WITHOUT_THREADS
    waits, forked, driver = threading.Event(), threading.Event(), os.getpid()

    @contextlib.contextmanager
    def importing_nothing() -> Iterator[None]:
        waits.set()
        try:
            yield
        finally:
            forked.wait()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # Linux chooses an abstract address
        listener.listen()
        os.environ[ADDRESS] = listener.getsockname()[1:].decode()
        try:
            yield importing_nothing()
            if waits.is_set() and os.fork() == 0:
                _serve(listener, driver)
        finally:
            forked.set()


def _serve(listener: socket.socket, driver: int) -> None:
    """Import what staging needs, take over from the process that Spark starts, and end with it or the driver."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Path("/proc/self/comm").write_text(PROCESS_NAME)
        # The JVM ends when the driver's end of their pipe is closed. This process would keep it open.
        os.closerange(3, listener.fileno())
        os.closerange(listener.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        preload()
        while not select.select([listener], [], [], 1)[0]:
            if os.getppid() != driver:
                return
        command = _accept(listener)
        for number, file in enumerate(socket.recv_fds(command, 1, 3)[1]):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(json.load(command.makefile()))
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.argv[1:] = ["pyspark.worker"]
        run()
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # skips what the driver does at its end


def _accept(listener: socket.socket) -> socket.socket:
    """Accept the first connection of this user; other users can connect as well."""
    while True:
        connection, _ = listener.accept()
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user == os.getuid():
            return connection
        connection.close()


def hand_over() -> bool:
    """Hand this process's files and environment over to the driver's fork, and wait for its end.

    Returns False if no fork waits: in a cluster, for another Python than the driver's, or if Spark starts the daemon
    again.
    """
    address = os.environ.get(ADDRESS)
    if address is None or os.environ.get("PYSPARK_DRIVER_PYTHON") != sys.executable:
        return False
    with socket.socket(socket.AF_UNIX) as fork:
        try:
            fork.connect(f"\0{address}")
        except OSError:
            return False
        socket.send_fds(fork, [b"\0"], [0, 1, 2])
        fork.sendall(json.dumps({**os.environ}).encode())
        fork.shutdown(socket.SHUT_WR)
        fork.recv(1)
    return True


def run() -> None:
    """Serve Spark until it closes this process's standard input."""
    from pyspark import daemon

    from frazil.stream.attempt import wrap_worker_main

    daemon.worker_main = wrap_worker_main(daemon.worker_main)
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__" and not hand_over():
    preload()
    run()
