"""Alerts of tables that cannot be measured or are gone. Pure."""

from __future__ import annotations

from datetime import timedelta

from frazil.maintenance.alerts import Alert, AlertState, AlertStates, AlertStep
from frazil.spec.maintenance import Alerts

RULE = "unmeasured"


def unmeasured(before: AlertStates, table: str, problem: str, settings: Alerts, *, now_ms: int) -> AlertStep:
    """Keep all active alerts, because nothing says that they are over; raise one of its own after the hold time."""
    if not settings.enabled:
        return AlertStep(AlertStates(), (), (), ())
    standing = [
        Alert(rule, table, "unknown", state.since_ms, f"{table}: {rule} was active when it was last measured")
        for rule, state in before.rules.items()
        if state.active and rule != RULE
    ]
    was = before.rules.get(RULE)
    since_ms = was.since_ms if was else now_ms
    active = now_ms - since_ms >= settings.hold // timedelta(milliseconds=1)
    made = Alert(RULE, table, problem, since_ms, f"{table} cannot be measured, so that no other alert fires: {problem}")
    fired = (made,) if active and not (was and was.active) else ()
    after = AlertStates({**before.rules, RULE: AlertState(since_ms, active)})
    return AlertStep(after, fired, (), (*standing, *((made,) if active else ())))


def gone(before: AlertStates, table: str, why: str) -> AlertStep:
    """End all alerts of the table."""
    over = [
        Alert(rule, table, why, state.since_ms, f"{table}: {rule} is over: {why}")
        for rule, state in before.rules.items()
        if state.active
    ]
    return AlertStep(AlertStates(), (), tuple(over), ())
