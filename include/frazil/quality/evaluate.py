"""Evaluates one window: finds the window, chooses the engine, validates the rows, and writes the result page.

Writes the Data Docs: one page for each gate run, and an index. The pages need no network.

Great Expectations' own pages load scripts, styles and images from a dozen hosts, and its site builder reads every
earlier run again. So only the results are rendered by Great Expectations; frazil makes the rest of the page, and the
index.

<docs>/index.html                    links to the newest runs
<docs>/runs.jsonl                    one line for each run; the index is made from it
<docs>/<table>/<partition>-<time>.html    the page of one run
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from frazil.quality.gate import GateRequest, GateResult
from frazil.quality.suite import Suite, check_columns, read_suite
from frazil.quality.window import GatedWindow, open_window, start_spark

if TYPE_CHECKING:
    from frazil.quality.validation import Validation
import fcntl
import json
import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

ARROW_ROWS_MAX = 5_000_000
"""Number of rows up to which pandas is used.

At 1 million rows, pandas is faster than Spark and takes 0.8 GB (bench/gate.py). The limit itself is not measured.
"""


def evaluate(
    request: GateRequest, *, now: datetime, start_session: Callable[[GateRequest], Any] = start_spark
) -> GateResult:
    """Evaluate the window and write its page. A window without rows passes.

    Raises SpecError if the suite cannot be used on this table, and the errors of `open_window`.
    """
    began = time.monotonic()
    suite = read_suite(request.suite)
    window = open_window(request)
    check_columns(suite, window.columns, request.table)
    engine: str = request.engine
    if engine == "auto":
        engine = "arrow" if window.max_rows() <= ARROW_ROWS_MAX else "spark"
    if engine == "spark":
        rows, found = _with_spark(suite, window, start_session(request))
    else:
        rows, found = _with_arrow(suite, window)
    failures = found.failures if found else ()
    run = GateRun(request, now, rows, failures, engine, round(time.monotonic() - began, 1))
    page = write_pages(run, found.html if found else "")
    return GateResult(not failures, rows, failures, str(page), engine, round(time.monotonic() - began, 3))


def _with_arrow(suite: Suite, window: GatedWindow) -> tuple[int, Validation | None]:
    frame = window.to_pandas(suite.columns)
    return len(frame), _validate(suite, frame, spark=False) if len(frame) else None


def _with_spark(suite: Suite, window: GatedWindow, session: Any) -> tuple[int, Validation | None]:
    frame = window.to_spark(suite.columns, session).persist()
    rows = frame.count()
    try:
        return rows, _validate(suite, frame, spark=True) if rows else None
    finally:
        frame.unpersist()


def _validate(suite: Suite, frame: Any, *, spark: bool) -> Validation:
    # Loading Great Expectations takes seconds, which an empty window and a refused suite do not need.
    from frazil.quality.validation import validate  # noqa: PLC0415

    return validate(suite, frame, spark=spark)


TEMPLATES = Path(__file__).with_name("templates")
INDEXED_RUNS = 1000
"""Number of the newest runs that the index links; the pages of older runs stay."""


@dataclass(frozen=True, slots=True)
class GateRun:
    """Facts about a run, shown at the head of its page, above the expectations."""

    request: GateRequest
    at: datetime
    rows: int
    failures: tuple[str, ...]
    engine: str
    seconds: float


def write_pages(run: GateRun, expectations: str) -> Path:
    """Write this run's page and update the index; return the page's path. `expectations` must be safe HTML."""
    docs = run.request.docs
    page = docs / _safe(run.request.table) / f"{_safe(run.request.partition)}-{run.at:%Y%m%dT%H%M%S%f}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    templates = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    page.write_text(templates.get_template("run.html").render(run=run, expectations=expectations))
    with (docs / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = _add(docs / "runs.jsonl", run, page.relative_to(docs).as_posix())
        shown = [one for one in reversed(runs) if (docs / one["page"]).exists()]
        _replace(docs / "index.html", templates.get_template("index.html").render(runs=shown))
    return page


def _add(file: Path, run: GateRun, page: str) -> list[dict[str, Any]]:
    """Add a run to the file, and return the runs that the file keeps, newest last."""
    entry = {
        "at": f"{run.at:%Y-%m-%d %H:%M:%S}",
        "table": run.request.table,
        "partition": run.request.partition,
        "rows": run.rows,
        "failures": len(run.failures),
        "page": page,
    }
    before = file.read_text().splitlines() if file.exists() else []
    lines = [*before, json.dumps(entry)][-INDEXED_RUNS:]
    _replace(file, "\n".join(lines) + "\n")
    return [json.loads(line) for line in lines]


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, because others may be reading it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
