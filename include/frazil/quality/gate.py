"""Asks a child process whether windows of a table meet its suite: who asks never loads Great Expectations.

Imported under Airflow's logging, Great Expectations logs hundreds of lines; it takes seconds to load, and its memory
would stay. So the child (`python -m frazil.quality`) reads requests from standard input and answers on its output, a
line each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from frazil import errors
from frazil.errors import FrazilError

LAST_WORDS = 2000
"""Characters of a crashed child's log that the error repeats."""


@dataclass(frozen=True, slots=True)
class GateRequest:
    """One window of one snapshot, and the suite that it has to meet."""

    suite: Path
    catalog: str | None
    """None is the default catalog."""
    table: str
    snapshot_id: int
    event_time: str
    """A column of type timestamptz or timestamp."""
    from_us: int
    to_us: int
    """`[from, to)`, microseconds since 1970, UTC."""
    partition: str
    """The window's key, such as 2013-12-30T15."""
    docs: Path
    """Folder of the Data Docs; all gates of a home share it."""
    engine: Literal["auto", "arrow", "spark"] = "auto"
    spark: Mapping[str, str] = field(default_factory=dict)
    """Spark properties that go over the gate's own: `spark.jars` with Iceberg's runtime, `spark.master`, memory."""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "suite": str(self.suite.absolute()), "docs": str(self.docs.absolute())})

    @classmethod
    def from_json(cls, text: str) -> GateRequest:
        said = json.loads(text)
        return cls(**said | {"suite": Path(said["suite"]), "docs": Path(said["docs"])})


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the suite says of the window."""

    passed: bool
    rows: int
    failures: tuple[str, ...]
    """One sentence each: expectation, column, how many of how many rows, examples."""
    docs: str
    """Path of this run's page; the index beside it links all runs."""
    engine: str
    """`arrow` or `spark`."""
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GateResult:
        said = json.loads(text)
        return cls(**said | {"failures": tuple(said["failures"])})


def find_suite(folder: Path, table: str) -> Path | None:
    """The suite of a table, `<folder>/<table identifier>.json`, where there is one."""
    suite = folder / f"{table}.json"
    return suite if suite.is_file() else None


def run_gates(requests: Sequence[GateRequest], *, timeout_s: float) -> tuple[GateResult, ...]:
    """Judge windows of one table, in their order, in one process of its own, which is killed at the timeout.

    Raises SpecError (the suite cannot be used on this table), AccessDenied, CommitUnavailable as the catalog does, and
    FrazilError where the process crashed or was too slow: then nothing is known of any of them.
    """
    if not requests:
        return ()
    where = f"the quality gate of {requests[0].table}, {', '.join(r.partition for r in requests)}"
    # -P: a DAG folder, which may be the current one, must not hide modules.
    command = [sys.executable, "-P", "-m", "frazil.quality", str(timeout_s)]
    said = "\n".join(request.to_json() for request in requests)
    try:
        done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise FrazilError(
            f"{where} was not judged within {timeout_s:.0f} s and was ended; allow it more time, or give it less to do "
            f"({requests[0].suite})"
        ) from error
    return _answers(done, where)


def _answers(done: subprocess.CompletedProcess[str], where: str) -> tuple[GateResult, ...]:
    """The results, one line for each request. Raises the error that the last line names, if the process failed."""
    lines = done.stdout.splitlines()
    if done.returncode == 0:
        return tuple(map(GateResult.from_json, lines))
    try:
        said = json.loads(lines[-1])
        kind, message = said["error"], said["message"]
    except (IndexError, KeyError, ValueError):
        raise FrazilError(
            f"{where} ended with code {done.returncode} before it was judged; its last words: "
            f"{done.stderr[-LAST_WORDS:].strip() or 'none'}"
        ) from None
    raise getattr(errors, kind)(message)
