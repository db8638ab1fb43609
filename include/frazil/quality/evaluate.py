"""Evaluates one window: finds the window, chooses the engine, validates the rows, and writes the result page."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from frazil.quality.gate import GateRequest, GateResult
from frazil.quality.pages import GateRun, write_pages
from frazil.quality.suite import Suite, check_columns, read_suite
from frazil.quality.window import GatedWindow, open_window, start_spark

if TYPE_CHECKING:
    from frazil.quality.validation import Validation

MAX_ARROW_ROWS = 5_000_000
"""Maximum number of rows for which pandas is used.

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
        engine = "arrow" if window.max_rows() <= MAX_ARROW_ROWS else "spark"
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
