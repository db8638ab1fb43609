"""Runs `frazil` commands in their own processes, which are forked from a process that has imported everything. A start
takes 50 ms.

A command's process may be killed, stopped or abandoned, as a user's may. Only its imports, the loading of compiled
loops and a writer's JVM are saved. The server adopts the children of a killed process, so that none of them outlives
its test. Run as a program, this module is the server: it reads `Request`s from standard input, one line of JSON each,
and prints the process ids.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from frazil.ingest import precompile
from tests.no_sync import write_without_sync
from tests.polling import eventually

_PR_SET_CHILD_SUBREAPER = 36

IMPORTED = (
    "pyspark.sql",
    "pyarrow.parquet",
    "pyiceberg.catalog.sql",
    "frazil.cli.main",
    "frazil.cli.run",
    "frazil.cli.status",
    "frazil.cli.audit",
    "frazil.cli.backfill",
    "frazil.cli.marker",
    "frazil.cli.desired",
    "frazil.cli.partitions",
    "frazil.cli.validate",
    "frazil.stream.main",
    "frazil.stream.spark_engine",
    "frazil.stream.planner",
    "frazil.backfill.stage",
    "frazil.stream.stage_rows",
    "tests.in_process_engine",
)


@dataclass(frozen=True, slots=True)
class Request:
    """One command. `clock_ms` is how far its wall clock is ahead. `dies_after` names a point at which it kills itself;
    `stops_after` names a point at which it stops itself until a test continues it.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    out: str
    clock_ms: int = 0
    dies_after: str | None = None
    stops_after: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended. A negative code is the number of the signal that ended it."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, f"the command ended with {self.code} and printed nothing: {self.err[-3000:]}"
        return json.loads(self.out)


class Running:
    """A command that was started."""

    def __init__(self, pid: int, out: Path) -> None:
        self.pid, self._out = pid, out

    @property
    def runs(self) -> bool:
        return not Path(f"{self._out}.code").exists()

    @property
    def error_output(self) -> str:
        return Path(f"{self._out}.err").read_text(errors="replace")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, *, within_s: float = 120) -> Done:
        """Wait until the command ends."""
        eventually(lambda: not self.runs, within_s=within_s)
        code = int(Path(f"{self._out}.code").read_text())
        return Done(code, Path(f"{self._out}.out").read_text(), self.error_output)


class CommandServer:
    """Starts the server process, and sends it requests. `environment` applies to every command."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self.environment = folder, environment
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def start(self, *arguments: str, environment: Mapping[str, str], **how: Any) -> Running:
        """Start a command. `how` sets the optional fields of its `Request`."""
        self._count += 1
        out = self._folder / f"{self._count:05d}-{arguments[0]}"
        request = Request(arguments, {**self.environment, **environment}, str(out), **how)
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asdict(request)) + "\n")
        self._server.stdin.flush()
        return Running(int(self._answer()), out)

    def end_all(self) -> None:
        """Kill all remaining processes of the commands, including stopped ones."""
        server = psutil.Process(self._server.pid)

        def none_left() -> bool:
            left = server.children(recursive=True)
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            return not left

        eventually(none_left)

    def stop(self) -> None:
        self.end_all()
        self._server.terminate()
        self._server.communicate()

    def _answer(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()


def _serve() -> None:
    for module in IMPORTED:
        import_module(module)
    precompile.main()
    gc.collect()
    gc.freeze()  # no command's garbage collector walks what all of them share
    write_without_sync()
    children: dict[int, str] = {}
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def reap(*_: object) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if (out := children.pop(pid, None)) is not None:
                    half = Path(f"{out}.half")
                    half.write_text(str(os.waitstatus_to_exitcode(status)))
                    half.rename(f"{out}.code")

    signal.signal(signal.SIGCHLD, reap)
    print("ready", flush=True)
    for line in sys.stdin:
        request = Request(**json.loads(line))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            _become(request)
        children[pid] = request.out
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(pid, flush=True)


def _become(request: Request) -> None:
    """Run the command in the child, and end as `frazil` does."""
    code = 1
    try:
        os.setsid()
        for number, end in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{request.out}.{end}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        faulthandler.enable()  # what a crash of native code leaves
        os.environ.update(request.environment)
        if request.clock_ms:
            _shift_clock(request.clock_ms)
        _spare_the_jvm()
        if request.dies_after:
            _signal_itself_after(request.dies_after, signal.SIGKILL)
        if request.stops_after:
            _signal_itself_after(request.stops_after, signal.SIGSTOP)
        sys.argv = ["frazil", *request.arguments]
        from frazil.cli.main import main  # imported before the fork

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _spare_the_jvm() -> None:
    from frazil.stream import spark_engine  # imported before the fork
    from tests.in_process_engine import InProcessEngine  # only children need it

    spark_engine.SparkEngine = lambda *_, **__: InProcessEngine()  # type: ignore[assignment,misc]


def _shift_clock(by_ms: int) -> None:
    """Shift this process's wall clock, but not its monotonic clock."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + by_ms / 1000
    time.time_ns = lambda: now_ns() + by_ms * 1_000_000


def _signal_itself_after(point: str, number: int) -> None:
    """Send this process the signal when a point of a batch is first passed."""
    from frazil.commit.committer import Committer  # imported before the fork
    from frazil.commit.journal import JournalStore
    from tests.crashes import between_the_tables_of_a_batch
    from tests.in_process_engine import InProcessEngine

    if point == "dead letters":
        between_the_tables_of_a_batch()
        return
    owner: type
    owner, name = {
        "stage": (InProcessEngine, "run"),
        "journal": (JournalStore, "put"),
        "commit": (Committer, "commit"),
    }[point]
    original: Callable[..., Any] = getattr(owner, name)

    def once(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        setattr(owner, name, original)
        os.kill(os.getpid(), number)
        return answer

    setattr(owner, name, once)


if __name__ == "__main__":
    _serve()
