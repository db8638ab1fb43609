"""Checks whether this machine and its services can run declared streams, and describes how to fix each fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from frazil.errors import explain
from frazil.table.parallel import DaemonThreads


class CheckState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """The check passed now, but may fail later or on another host."""
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `fix` is empty if none is needed, or if `message` contains it."""

    subject: str
    state: CheckState
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check, with its timeout. A timeout counts as a fault. A raised error becomes a finding."""

    run: Callable[[], Iterable[Finding]]
    timeout_s: float = 20.0


def run_checks(checks: Mapping[str, Check]) -> Iterator[Finding]:
    """Run all checks in parallel, and yield their findings in the order of the checks. Abandons a check that hangs."""
    threads = DaemonThreads(len(checks), "check")
    answers = {subject: threads.submit(partial(_run_check, subject, check)) for subject, check in checks.items()}
    for subject, check in checks.items():
        try:
            yield from answers[subject].result(check.timeout_s)
        except TimeoutError:
            problem = f"no answer within {check.timeout_s:.0f} s"
            yield Finding(subject, CheckState.WRONG, problem, "check the services that this check contacts")


def _run_check(subject: str, check: Check) -> list[Finding]:
    try:
        return list(check.run())
    except Exception as error:  # anything that a client raises; the other checks continue
        explanation = explain(error)
        return [Finding(subject, CheckState.WRONG, explanation.headline, explanation.remedy)]
