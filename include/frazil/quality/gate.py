"""Checks windows of a table against its suite in a child process, because Great Expectations is slow to load. The child
process (`python -m frazil.quality`) reads one request per line and writes one result per line.
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
from frazil.typed import decode

MAX_LOG_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class GateRequest:
    suite: Path
    catalog: str | None
    table: str
    snapshot_id: int
    event_time: str
    """Name of a column of type timestamptz or timestamp."""
    from_us: int
    """Start of the window (inclusive), in microseconds since 1970, UTC."""
    to_us: int
    """End of the window (exclusive), in microseconds since 1970, UTC."""
    partition: str
    """The window's partition key, such as 2013-12-30T15."""
    docs: Path
    """Folder of the Data Docs. All gates with the same FRAZIL_HOME share it."""
    engine: Literal["auto", "arrow", "spark"] = "auto"
    """`arrow` (pandas), `spark`, or `auto`: chosen by the number of rows."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Spark properties, such as `spark.jars`. They replace the gate's own properties, but not the catalog's."""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "suite": str(self.suite.absolute()), "docs": str(self.docs.absolute())})

    @classmethod
    def from_json(cls, text: str) -> GateRequest:
        raw = json.loads(text)
        return cls(**raw | {"suite": Path(raw["suite"]), "docs": Path(raw["docs"])})


@dataclass(frozen=True, slots=True)
class GateResult:
    passed: bool
    rows: int
    failures: tuple[str, ...]
    """One sentence for each failed expectation: expectation, column, number of failing rows, examples."""
    docs: str
    """Path of the page about this run. An index in the folder above links to the newest runs."""
    engine: str
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def find_suite(folder: Path, table: str) -> Path | None:
    """Return the suite of a table, `<folder>/<table identifier>.json`; None if the file does not exist."""
    suite = folder / f"{table}.json"
    return suite if suite.is_file() else None


def run_gates(requests: Sequence[GateRequest], *, timeout_s: float) -> tuple[GateResult, ...]:
    """Evaluate windows of one table, in order, in one child process, which is killed after `timeout_s`. Raises
    SpecError if the suite cannot be used on this table, FrazilError if the process crashed or timed out, and the
    catalog's AccessDenied and CommitUnavailable.
    """
    if not requests:
        return ()
    where = f"the quality gate of {requests[0].table}, {', '.join(r.partition for r in requests)}"
    # -P: a DAG folder, which may be the current one, must not hide modules.
    command = [sys.executable, "-P", "-m", "frazil.quality", str(timeout_s)]
    lines = "\n".join(request.to_json() for request in requests)
    try:
        done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise FrazilError(
            f"{where} did not finish within {timeout_s:.0f} s and was killed; allow more time, or reduce the suite "
            f"{requests[0].suite}"
        ) from error
    return _parse_results(done, where)


def _parse_results(done: subprocess.CompletedProcess[str], where: str) -> tuple[GateResult, ...]:
    lines = done.stdout.splitlines()
    if done.returncode == 0:
        return tuple(decode(line, GateResult) for line in lines)
    try:
        error = json.loads(lines[-1])
        kind, message = error["error"], error["message"]
    except (IndexError, KeyError, ValueError):
        raise FrazilError(
            f"{where} ended with exit code {done.returncode} and no result; its last output: "
            f"{done.stderr[-MAX_LOG_CHARACTERS:].strip() or 'none'}"
        ) from None
    raise getattr(errors, kind)(message)
