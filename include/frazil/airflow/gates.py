"""The quality gates of a table's windows, as a look asks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from frazil.commit.completion import Gate, Look, RunGates
from frazil.commit.rules import head_of
from frazil.home import home
from frazil.partitions.windows import Window
from frazil.quality.gate import GateRequest, find_suite, run_gate

TIMEOUT_S = 900.0
"""For all windows of one look: a window of 1 M rows takes less than a minute."""


def gates_of(expectations: Path | None, table: str) -> RunGates | None:
    """How a table's windows are judged; None where it has no suite."""
    suite = find_suite(expectations, table) if expectations else None
    return partial(_judge, suite) if suite else None


def _judge(suite: Path, seen: Look, windows: Sequence[Window]) -> Mapping[Window, Gate]:
    head = head_of(seen.table.metadata)
    if head is None:
        return {}
    requests = [
        GateRequest(
            suite=suite,
            catalog=seen.specs[0].table.catalog,
            table=seen.signals.table,
            snapshot_id=head.snapshot_id,
            event_time=seen.specs[0].event_time.column,
            from_us=window.start_us,
            to_us=window.end_us,
            partition=window.key,
            docs=home() / "data-docs",
        )
        for window in windows
    ]
    results = [run_gate(request, timeout_s=TIMEOUT_S) for request in requests]
    return {
        window: Gate(result.passed, None if result.passed else f"{'; '.join(result.failures)} ({result.docs})")
        for window, result in zip(windows, results, strict=True)
    }
