"""Alerts for tables that cannot be measured, or that no longer exist. Pure."""

from __future__ import annotations

from datetime import timedelta

from frazil.maintenance.alerts import Alert, AlertState, AlertStates, AlertStep
from frazil.spec.maintenance import Alerts

RULE = "unmeasured"


def unmeasured(before: AlertStates, table: str, problem: str, settings: Alerts, *, now_ms: int) -> AlertStep:
    """Keep all active alerts, because it is unknown whether they are over. Fire `unmeasured` after the hold time."""
    if not settings.enabled:
        return AlertStep(AlertStates(), (), (), ())
    standing = [
        Alert(rule, table, "unknown", s.since_ms, f"{table}: {rule} was active when it was last measured", s.alone)
        for rule, s in before.rules.items()
        if s.active and rule != RULE
    ]
    was = before.rules.get(RULE)
    was = was or AlertState(now_ms, active=False)
    active = now_ms - was.since_ms >= settings.hold // timedelta(milliseconds=1)
    sentence = f"{table} cannot be measured, so that no other alert fires: {problem}"
    made = Alert(RULE, table, problem, was.since_ms, sentence, was.alone)
    fired = (made,) if active and not was.active else ()
    after = AlertStates({**before.rules, RULE: AlertState(was.since_ms, active, alone=was.alone)})
    return AlertStep(after, fired, (), (*standing, *((made,) if active else ())))


def gone(before: AlertStates, table: str, why: str) -> AlertStep:
    """End all alerts of a table that no longer exists."""
    over = [
        Alert(rule, table, why, state.since_ms, f"{table}: {rule} is over: {why}", state.alone)
        for rule, state in before.rules.items()
        if state.active
    ]
    return AlertStep(AlertStates(), (), tuple(over), ())
