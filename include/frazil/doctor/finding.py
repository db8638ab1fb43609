"""Runs checks in parallel, each with a timeout, and collects their findings."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from frazil.errors import FrazilError


class CheckState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Works now, but may fail later or elsewhere."""
    WRONG = "wrong"
    SKIPPED = "skipped"
    """Does not concern this machine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check of `subject` found, in one sentence; `fix` is empty if nothing is to do, or `said` says it."""

    subject: str
    state: CheckState
    said: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check that is wrong if it takes longer than `within_s`. An error that it raises becomes a finding."""

    run: Callable[[], Iterable[Finding]]
    within_s: float = 20.0


def run_checks(checks: Mapping[str, Check]) -> Iterator[Finding]:
    """Run all checks in parallel, and yield their findings in the order of the checks. Abandons a check that hangs."""
    answers: dict[str, queue.SimpleQueue[list[Finding]]] = {}
    for subject, check in checks.items():
        answers[subject] = queue.SimpleQueue()
        threading.Thread(target=_run_check, args=(subject, check, answers[subject]), daemon=True, name=subject).start()
    for subject, check in checks.items():
        try:
            yield from answers[subject].get(timeout=check.within_s)
        except queue.Empty:
            yield Finding(
                subject, CheckState.WRONG, f"no answer within {check.within_s:.0f} s", "find out what it waits for"
            )


def _run_check(subject: str, check: Check, to: queue.SimpleQueue[list[Finding]]) -> None:
    try:
        to.put(list(check.run()))
    except FrazilError as error:  # its message says what to do
        to.put([Finding(subject, CheckState.WRONG, f"{type(error).__name__}: {error}")])
    except Exception as error:  # anything that a client raises; the other checks continue
        to.put([Finding(subject, CheckState.WRONG, f"{type(error).__name__}: {' '.join(str(error).split())}")])
