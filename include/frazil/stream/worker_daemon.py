"""Replaces `pyspark.daemon`: forks Spark's Python workers from a process that has already imported what staging needs.

Spark often starts new workers, because idle workers end after a minute. A forking process must have no other threads,
open connections or Kafka clients. The threads of OpenBLAS and jemalloc are therefore disabled.

On a Linux host without a cluster, the daemon is a fork of the driver, which has already imported most of that. The
process that Spark starts hands its files and environment over to the fork.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

from frazil.fast_imports import fast_imports

MODULE = __name__
STAGE_MODULE = "frazil.stream.stage_rows"
LATE_IMPORTS = ("frazil.ingest.stage", "frazil.ingest.kafka_columns", "frazil.ingest.formats.json.decoder")
"""Modules that staging would import late. After an upgrade, a forked worker would mix versions."""
_ARCHIVE = re.compile(r"/((pyspark|py4j-[^/]*-src)\.zip|spark-core_[^/]*\.jar)(/|$)")
SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep OpenBLAS and jemalloc from starting threads."""
ADDRESS = "FRAZIL_DAEMON_ADDRESS"
"""Environment variable with the name of the abstract socket at which the driver's fork waits."""
PROCESS_NAME = "frazil-workers"
"""Name of the fork and of its workers in `ps` and `top`. Their command line is the driver's."""


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
    others = [path for path in sys.path if not _ARCHIVE.search(path)]
    if PathFinder.find_spec("pyspark", others) and PathFinder.find_spec("py4j", others):
        sys.path[:] = others
        for path in filter(_ARCHIVE.search, [*sys.path_importer_cache]):
            del sys.path_importer_cache[path]


@contextlib.contextmanager
def forked_daemon(*, local: bool) -> Iterator[None]:
    """Fork the daemon after the block, which launches the JVM and imports what the driver needs.

    At the end of the block, no other thread may run Python code.
    """
    if not local or sys.platform != "linux":
        yield
        return
    os.environ |= SINGLE_THREADED
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # Linux chooses an abstract address
        listener.listen()
        os.environ[ADDRESS] = listener.getsockname()[1:].decode()
        try:
            yield
        finally:
            del os.environ[ADDRESS]  # only the block's JVM may use it
        driver = os.getpid()
        if os.fork() == 0:
            _run_fork(listener, driver)


def _run_fork(listener: socket.socket, driver: int) -> NoReturn:
    """Import what staging needs, take over from the process that Spark starts, and end with it or the driver."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        Path("/proc/self/comm").write_text(PROCESS_NAME)
        # The driver's ends of pipes tell the JVM and `frazil run` whether the driver lives.
        for file in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if file > 2 and file != listener.fileno():
                with contextlib.suppress(OSError):  # of the listing itself
                    os.close(file)
        for logger in (logging.root, logging.getLogger("frazil")):
            logger.handlers.clear()
        preload()
        while not select.select([listener], [], [], 1)[0]:
            if os.getppid() != driver:
                sys.exit(0)
        _take_over(listener)
        _serve()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # skips what the driver does at its end


def _take_over(listener: socket.socket) -> None:
    """Use the files, environment and import path of the process that Spark started."""
    sender = _accept(listener)
    listener.close()
    for number, file in enumerate(socket.recv_fds(sender, 1, 3)[1]):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(json.load(sender.makefile()))
    added = [str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:0] = [path for path in added if path and path not in sys.path and not _ARCHIVE.search(path)]
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.argv[1:] = ["pyspark.worker"]
    # Stays open, so that the process that Spark started ends with this one.
    sender.detach()


def _accept(listener: socket.socket) -> socket.socket:
    """Accept the first connection of this user. Other users can connect as well."""
    while True:
        connection, _ = listener.accept()
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user == os.getuid():
            return connection
        connection.close()


def _hand_over() -> bool:
    """Hand this process's files and environment over to the driver's fork, and wait for its end.

    Returns False if no fork waits: in a cluster, with another Python than the driver's, or after the fork's end.
    """
    address = os.environ.get(ADDRESS)
    if address is None or os.environ.get("PYSPARK_DRIVER_PYTHON") != sys.executable:
        return False
    with socket.socket(socket.AF_UNIX) as fork:
        try:
            fork.connect(f"\0{address}")
            socket.send_fds(fork, [b"\0"], [0, 1, 2])
            fork.sendall(json.dumps({**os.environ}).encode())
            fork.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        with contextlib.suppress(OSError):
            fork.recv(1)
    return True


def _serve() -> None:
    """Fork workers until Spark closes this process's standard input."""
    from pyspark import daemon

    from frazil.stream.attempt import wrap_worker_main

    daemon.worker_main = wrap_worker_main(daemon.worker_main)
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__" and not _hand_over():
    preload()
    _serve()
