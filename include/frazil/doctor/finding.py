"""Runs checks in parallel, each with a timeout, and collects their findings."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from frazil.errors import FrazilError


class CheckState(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    """It works now, but may fail later or elsewhere."""
    WRONG = "wrong"
    """Something that frazil needs does not work."""
    SKIPPED = "skipped"
    """The check does not concern this machine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one thing."""

    subject: str
    """The name of the check, in one or two words."""
    state: CheckState
    said: str
    """The result of the check, in one sentence."""
    fix: str = ""
    """What to do; empty if nothing, or if `said` already says so."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one subject. An error that it raises becomes a finding."""

    run: Callable[[], Iterable[Finding]]
    within_s: float = 20.0
    """Timeout in seconds. A check that takes longer is reported as wrong."""


def run_checks(checks: Mapping[str, Check]) -> Iterator[Finding]:
    """Run all checks in parallel, and yield their findings in the order of the checks.

    A check that hangs is abandoned: its thread ends with the process.
    """
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
