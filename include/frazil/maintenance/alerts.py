"""Fires an alert when its value has been beyond the threshold for the hold time; resolves it at 80 % of the threshold.
Pure. Each measurement gets the previous one's `AlertStates`, a small JSON value, so any process can run it. Unknown
values change nothing. The hold time restarts after a gap between measurements that exceeds both the hold time and three
measurement intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from frazil.maintenance.alert_rules import Reading, evaluate_table_rules, runbook_link
from frazil.maintenance.health import TableHealth
from frazil.spec.maintenance import Alerts, Maintenance

MAX_GAPS = 3
"""Number of measurement intervals without a measurement after which the hold time restarts."""
DEFAULT_GAP_MS = 300_000
"""Minimum measurement interval that is assumed, even if the last two measurements were closer together."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule's alert about one subject, such as a table or a stream."""

    rule: str
    table: str
    value: str
    """The last measured value, as text."""
    since_ms: int
    """When the value was first beyond the threshold."""
    sentence: str
    """What is wrong and what to do now; for a resolved alert, that it is over."""
    alone: bool = True
    """Whether this alert opens a separate incident (see `mark_reported_together`)."""

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON, with a link to the runbook's section about the rule."""
        return {**asdict(self), "runbook": runbook_link(self.rule)}


@dataclass(frozen=True, slots=True)
class AlertState:
    """A rule's state, from the time its value passes the threshold until its alert resolves."""

    since_ms: int
    active: bool
    """Whether the alert has fired and has not resolved yet."""
    seen_ms: int | None = None
    """When the value was last measured beyond the threshold; not updated once the alert is active."""
    gap_ms: int = 0
    """Time between the last two measurements beyond the threshold."""
    alone: bool = True
    """The value of `Alert.alone`, so that an alert that was reported alone also ends alone."""


@dataclass(frozen=True, slots=True)
class AlertStates:
    """One subject's states by rule. A rule has no state while its value is fine."""

    rules: Mapping[str, AlertState] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON. Omits `alone` where it is True, so that the previous version can read these states."""
        written = {rule: list(astuple(state)) for rule, state in sorted(self.rules.items())}
        return {rule: values[:-1] if self.rules[rule].alone else values for rule, values in written.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self:
        """Parse stored states, dropping invalid ones."""
        return cls({rule: AlertState(*kept) for rule, kept in (value or {}).items() if _is_state(kept)})


def _is_state(kept: object) -> bool:
    """Return whether a stored value has two to five elements of the expected types."""
    if not isinstance(kept, list) or not 2 <= len(kept) <= 5:
        return False
    kinds = ((int,), (bool,), (int, type(None)), (int,), (bool,))  # exact types, because True is an int
    return all(type(one) in allowed for one, allowed in zip(kept, kinds, strict=False))


@dataclass(frozen=True, slots=True)
class AlertStep:
    """One measurement's new states, and the alerts that fired, resolved and are active (`fired` included)."""

    states: AlertStates
    fired: tuple[Alert, ...]
    resolved: tuple[Alert, ...]
    active: tuple[Alert, ...]


def evaluate_alerts(previous: AlertStates, health: TableHealth, settings: Maintenance, *, now_ms: int) -> AlertStep:
    """Evaluate a table's rules on one more measurement."""
    seen = evaluate_table_rules(health, settings, now_ms=now_ms)
    return evaluate_readings(previous, health.table, seen, settings.alerts, now_ms=now_ms)


def evaluate_readings(
    previous: AlertStates, subject: str, seen: Iterable[Reading], alerts: Alerts, *, now_ms: int
) -> AlertStep:
    """Return the step of any subject from one measurement's readings."""
    found = {r.rule: r for r in seen}
    hold_ms = alerts.hold // timedelta(milliseconds=1)
    states: dict[str, AlertState] = {}
    fired, resolved, active = [], [], []
    for rule in sorted(found.keys() | previous.rules.keys()):
        before, reading = previous.rules.get(rule), found.get(rule) or _unknown_reading(found, rule)
        own_ms = hold_ms if reading is None or reading.hold_ms is None else reading.hold_ms
        after = _next_state(before, reading, hold_ms=own_ms, now_ms=now_ms)
        was_active = before is not None and before.active
        if after is not None:
            states[rule] = after
        if reading is not None and after is not None and after.active:
            active.append(Alert(rule, subject, reading.shown, after.since_ms, reading.sentence, after.alone))
            fired += [] if was_active else active[-1:]
        elif before is not None and was_active:
            now = reading.shown if reading is not None else "no longer watched"
            resolved.append(
                Alert(rule, subject, now, before.since_ms, f"{subject}: the alert {rule} is over: {now}", before.alone)
            )
    return AlertStep(AlertStates(states), tuple(fired), tuple(resolved), tuple(active))


def _unknown_reading(found: Mapping[str, Reading], rule: str) -> Reading | None:
    """Return an unknown reading for a rule `<name>:<subject>`, if the source of all such rules could not be read."""
    whole = found.get(rule.partition(":")[0])
    if whole is None or not whole.unread:
        return None
    sentence = f"the alert {rule} was active when it was last measured, and its value is unknown now"
    return replace(whole, rule=rule, sentence=sentence)


def mark_reported_together(steps: Mapping[str, AlertStep], limit: int) -> dict[str, AlertStep]:
    """Return the steps by subject. All alerts that fire after the first `limit` get `alone=False`."""
    fired = [(subject, alert.rule) for subject, made in steps.items() for alert in made.fired]
    together = set(fired[limit:])

    def mark(subject: str, made: AlertStep) -> AlertStep:
        def mark_alert(alert: Alert) -> Alert:
            return replace(alert, alone=alert.alone and (subject, alert.rule) not in together)

        states = {
            rule: replace(state, alone=state.alone and (subject, rule) not in together)
            for rule, state in made.states.rules.items()
        }
        fired, active = (tuple(map(mark_alert, alerts)) for alerts in (made.fired, made.active))
        return AlertStep(AlertStates(states), fired, made.resolved, active)

    return {subject: mark(subject, made) for subject, made in steps.items()}


def _next_state(before: AlertState | None, reading: Reading | None, *, hold_ms: int, now_ms: int) -> AlertState | None:
    """Return one rule's state after a measurement; None if the rule needs no state."""
    if reading is None:
        return None
    if reading.value is None:
        return before
    if before is not None and before.active:
        return None if reading.is_clear else before
    if not reading.is_beyond:
        return None
    if before is None:
        return AlertState(now_ms, active=hold_ms == 0, seen_ms=now_ms)
    gap_ms = max(now_ms - (before.seen_ms or before.since_ms), 0)  # a clock may have been set back
    unseen = gap_ms > max(hold_ms, MAX_GAPS * max(before.gap_ms, DEFAULT_GAP_MS))
    since_ms = now_ms if unseen else min(before.since_ms, now_ms)
    return AlertState(since_ms, now_ms - since_ms >= hold_ms, now_ms, gap_ms)


UNMEASURED_RULE = "unmeasured"


def evaluate_unmeasured(before: AlertStates, table: str, problem: str, settings: Alerts, *, now_ms: int) -> AlertStep:
    """Return the step of a table that cannot be measured: active alerts stay, and `unmeasured` may fire."""
    if not settings.enabled:
        return AlertStep(AlertStates(), (), (), ())
    standing = [
        Alert(rule, table, "unknown", s.since_ms, f"{table}: {rule} was active when it was last measured", s.alone)
        for rule, s in before.rules.items()
        if s.active and rule != UNMEASURED_RULE
    ]
    was = before.rules.get(UNMEASURED_RULE) or AlertState(now_ms, active=False)
    active = now_ms - was.since_ms >= settings.hold // timedelta(milliseconds=1)
    sentence = f"{table} cannot be measured, so no other alert can fire: {problem}"
    made = Alert(UNMEASURED_RULE, table, problem, was.since_ms, sentence, was.alone)
    fired = (made,) if active and not was.active else ()
    after = AlertStates({**before.rules, UNMEASURED_RULE: AlertState(was.since_ms, active, alone=was.alone)})
    return AlertStep(after, fired, (), (*standing, *((made,) if active else ())))


def resolve_all(before: AlertStates, table: str, why: str) -> AlertStep:
    """Return the step of a table that no longer exists: all its alerts resolve."""
    over = [
        Alert(rule, table, why, state.since_ms, f"{table}: {rule} is over: {why}", state.alone)
        for rule, state in before.rules.items()
        if state.active
    ]
    return AlertStep(AlertStates(), (), tuple(over), ())
