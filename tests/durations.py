"""CPU seconds of each test function with all its parameters, as measured in a run, in tests/durations.json.

`make unit` leaves out the functions that take long (the mark `slow`). `make test` begins with the files that take
longest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

PATH = Path(__file__).with_suffix(".json")
MIN_S = 0.2
"""Functions that take less are not stored. `make unit` leaves out those that are."""


def read() -> dict[str, float]:
    return dict(json.loads(PATH.read_text())) if PATH.exists() else {}


def write(spent: Mapping[str, float]) -> None:
    """Store the CPU seconds of tests by node id. Files that did not run keep their earlier values."""
    measured: Counter[str] = Counter()
    for test, seconds in spent.items():
        measured[function_of(test)] += seconds  # type: ignore[assignment]
    ran = {file_of(name) for name in measured}
    kept = {name: seconds for name, seconds in read().items() if file_of(name) not in ran}
    stored = kept | {name: round(seconds, 1) for name, seconds in measured.items() if seconds >= MIN_S}
    PATH.write_text(json.dumps(dict(sorted(stored.items())), indent=0) + "\n")


def function_of(test: str) -> str:
    """Return the node id without its parameters, and without the group that xdist appends."""
    return test.partition("[")[0].partition("@")[0]


def file_of(test: str) -> str:
    return test.partition("::")[0]
