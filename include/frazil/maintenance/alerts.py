"""Fires and resolves alerts: a value must be beyond its threshold for a while, and well below it to resolve.

Pure. A small JSON value (`AlertStates`) is passed from one measurement to the next, in whatever process. For each rule
the first match wins:

  1. the rule no longer applies (alerts were switched off, the stream or the table is gone): it resolves;
  2. the value is unknown: nothing changes;
  3. it is active: it stays until the value is at most 80 % of the threshold;
  4. the value is not beyond the threshold: the hold starts again;
  5. it has not been seen beyond for longer than the hold, and for longer than three of the usual gaps between
     measurements: the hold starts again, because what happened in between is unknown;
  6. the value has been beyond for the hold: it fires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from frazil.maintenance.alert_rules import Reading, readings
from frazil.maintenance.health import TableHealth
from frazil.maintenance.rules import runbook_of
from frazil.spec.maintenance import Alerts, Maintenance

GAPS = 3
"""Usual gaps that a pause may last without restarting the hold, even if the hold is shorter."""
USUAL_MS = 300_000
"""The usual gap between measurements until one is known: five minutes."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule of one subject that needs attention."""

    rule: str
    table: str
    value: str
    """The last measured value, as text."""
    since_ms: int
    """Time at which the value was first beyond the threshold."""
    sentence: str
    """What is wrong and what to do now; for a resolved alert, that it is over."""
    alone: bool = True
    """Whether it is reported on its own, if each alert opens an incident; see `reported_alone`."""

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON, with the runbook's section about it."""
        return {**asdict(self), "runbook": runbook_of(self.rule)}


@dataclass(frozen=True, slots=True)
class AlertState:
    """A rule whose value is, or was, beyond its threshold."""

    since_ms: int
    active: bool
    """Whether it has fired and not resolved since."""
    seen_ms: int | None = None
    """Time at which it was last beyond before it fired; None in a state of an earlier version."""
    gap_ms: int = 0
    """Gap between the last two measurements that were beyond."""
    alone: bool = True
    """Copied from its alert: what was reported alone also ends alone. Earlier versions did not store it."""


@dataclass(frozen=True, slots=True)
class AlertStates:
    """States of one subject by rule; a healthy rule has no state."""

    rules: Mapping[str, AlertState] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON. Alerts reported alone keep the previous version's form, so that a rollback keeps them."""
        written = {rule: list(astuple(state)) for rule, state in sorted(self.rules.items())}
        return {rule: values[:-1] if self.rules[rule].alone else values for rule, values in written.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self:
        """Parse stored states; None means no states yet, and anything that is not a state is dropped."""
        return cls({rule: AlertState(*kept) for rule, kept in (value or {}).items() if _is_state(kept)})


def _is_state(kept: object) -> bool:
    """Whether it has a form of `to_json`, with four or five values; earlier versions also wrote the first two only."""
    if not isinstance(kept, list) or not 2 <= len(kept) <= 5:
        return False
    since_ms, active, *rest = kept
    times = [since_ms, *(seen_ms for seen_ms in rest[:1] if seen_ms is not None), *rest[1:2]]
    flags = [active, *rest[2:]]
    return all(isinstance(one, bool) for one in flags) and all(
        isinstance(ms, int) and not isinstance(ms, bool) for ms in times
    )


@dataclass(frozen=True, slots=True)
class AlertStep:
    """Result of one measurement, and the active alerts; `fired` is part of `active`."""

    states: AlertStates
    fired: tuple[Alert, ...]
    resolved: tuple[Alert, ...]
    active: tuple[Alert, ...]


def step(previous: AlertStates, health: TableHealth, settings: Maintenance, *, now_ms: int) -> AlertStep:
    """Update a table's states with one more measurement."""
    seen = readings(health, settings, now_ms=now_ms)
    return step_readings(previous, health.table, seen, settings.alerts, now_ms=now_ms)


def step_readings(
    previous: AlertStates, subject: str, seen: Iterable[Reading], alerts: Alerts, *, now_ms: int
) -> AlertStep:
    """Update any subject's states with its readings."""
    found = {r.rule: r for r in seen}
    hold_ms = alerts.hold // timedelta(milliseconds=1)
    states: dict[str, AlertState] = {}
    fired, resolved, active = [], [], []
    for rule in sorted(found.keys() | previous.rules.keys()):
        before, reading = previous.rules.get(rule), found.get(rule) or _unread(found, rule)
        own_ms = hold_ms if reading is None or reading.hold_ms is None else reading.hold_ms
        after = _next(before, reading, hold_ms=own_ms, now_ms=now_ms)
        was_active = before is not None and before.active
        if after is not None:
            states[rule] = after
        if reading is not None and after is not None and after.active:
            active.append(Alert(rule, subject, reading.shown, after.since_ms, reading.sentence, after.alone))
            fired += [] if was_active else active[-1:]
        elif before is not None and was_active:
            resolved.append(_over(before, rule, reading, subject))
    return AlertStep(AlertStates(states), tuple(fired), tuple(resolved), tuple(active))


def _unread(found: Mapping[str, Reading], rule: str) -> Reading | None:
    """The reading of `<rule>:<subject>`, if the source of `<rule>` could not be read; else it no longer applies."""
    whole = found.get(rule.partition(":")[0])
    if whole is None or not whole.unread:
        return None
    sentence = f"the alert {rule} was active when it was last measured, and its value is unknown now"
    return replace(whole, rule=rule, sentence=sentence)


def reported_alone(steps: Mapping[str, AlertStep], limit: int) -> dict[str, AlertStep]:
    """The steps of one measurement by subject; only the first `most` alerts that fire are reported alone."""
    fired = [(subject, alert.rule) for subject, made in steps.items() for alert in made.fired]
    together = set(fired[limit:])

    def marked(subject: str, made: AlertStep) -> AlertStep:
        def one(alert: Alert) -> Alert:
            return replace(alert, alone=False) if (subject, alert.rule) in together else alert

        states = {
            rule: replace(state, alone=False) if (subject, rule) in together else state
            for rule, state in made.states.rules.items()
        }
        return AlertStep(AlertStates(states), tuple(map(one, made.fired)), made.resolved, tuple(map(one, made.active)))

    return {subject: marked(subject, made) for subject, made in steps.items()} if together else dict(steps)


def _next(before: AlertState | None, reading: Reading | None, *, hold_ms: int, now_ms: int) -> AlertState | None:
    """The state of one rule after a measurement; None if it is healthy."""
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
    unseen = gap_ms > max(hold_ms, GAPS * max(before.gap_ms, USUAL_MS))
    since_ms = now_ms if unseen else min(before.since_ms, now_ms)
    return AlertState(since_ms, now_ms - since_ms >= hold_ms, now_ms, gap_ms)


def _over(before: AlertState, rule: str, reading: Reading | None, table: str) -> Alert:
    now = reading.shown if reading is not None else "no longer watched"
    return Alert(rule, table, now, before.since_ms, f"{table}: the alert {rule} is over: {now}", before.alone)
