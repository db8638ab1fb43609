"""Alerts of tables of which nothing can be known: one that cannot be measured, and one that is gone. Pure."""

from __future__ import annotations

from datetime import timedelta

from frazil.maintenance.alerts import Alert, AlertState, AlertStates, Step
from frazil.spec.maintenance import Alerts

RULE = "unmeasured"


def unmeasured(before: AlertStates, table: str, problem: str, settings: Alerts, *, now_ms: int) -> Step:
    """All that stood stands, for nothing says that it is over; what lasts for the hold is an alert of its own."""
    if not settings.enabled:
        return Step(AlertStates(), (), (), ())
    standing = [
        Alert(rule, table, "unknown", state.since_ms, f"{table}: {rule} stood when it was measured last")
        for rule, state in before.rules.items()
        if state.active and rule != RULE
    ]
    was = before.rules.get(RULE)
    since_ms = was.since_ms if was else now_ms
    active = now_ms - since_ms >= settings.hold // timedelta(milliseconds=1)
    made = Alert(RULE, table, problem, since_ms, f"{table} cannot be measured, so that no other alert fires: {problem}")
    fired = (made,) if active and not (was and was.active) else ()
    after = AlertStates({**before.rules, RULE: AlertState(since_ms, active)})
    return Step(after, fired, (), (*standing, *((made,) if active else ())))


def gone(before: AlertStates, table: str, why: str) -> Step:
    """Whatever stood of the table is over."""
    over = [
        Alert(rule, table, why, state.since_ms, f"{table}: {rule} is over: {why}")
        for rule, state in before.rules.items()
        if state.active
    ]
    return Step(AlertStates(), (), tuple(over), ())
