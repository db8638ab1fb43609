"""Validates the form of an action, and converts it to the action's parameters. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from frazil.backfill.request import check_not_in_future, parse_request
from frazil.errors import SpecError
from frazil.operations.page_actions import DAG_ACTIONS, PageAction
from frazil.operations.stream_actions import ResetTarget
from frazil.partitions.completeness import Cursor, never_signalled_text
from frazil.partitions.windows import Grain, Window
from frazil.safe_text import reason_problem
from frazil.timetext import parse_moment

RESET_TARGETS = ("marker", "earliest", "latest", "table", "timestamp")
LABELS = {"from-time": "From", "to-time": "To (exclusive)", "at": "Timestamp", "partition": "Window", "day": "Day"}
MAX_HELD_LISTED = 5
Form = Mapping[str, Any]


class InvalidForm(Exception):
    """The form is not valid; the message says what to change."""


class OutcomeUnknown(Exception):
    """Whether the action was applied is unknown; the message says why."""


def find_form_problem(action: PageAction, name: str, form: Form, *, now_ms: int) -> str | None:
    try:
        if action in DAG_ACTIONS:
            conf = build_run_conf(action, name, form)
            if action is PageAction.BACKFILL:
                conf.pop("dry-run")
                check_not_in_future(parse_request(conf), now_ms)
        elif action is PageAction.RESET:
            parse_reset_target(form)
        elif action is PageAction.SEND_AGAIN:
            parse_day(form)
    except InvalidForm as error:
        return str(error)
    except SpecError as error:
        problem = str(error)
        for key in ("from-time", "to-time"):
            problem = problem.replace(key, LABELS[key])
        return problem
    return None


def find_release_problem(form: Form, cursor: Cursor | None) -> str | None:
    window, label = _parse_window(form, "partition"), LABELS["partition"]
    if cursor is None:
        return f"{label}: no gate has evaluated a window of this table yet, so no window is held"
    held = sorted(Window(us, cursor.grain) for us in cursor.held)
    if window in held:
        return None
    if window.grain is not cursor.grain:
        reason = f"this table's windows are {cursor.grain}s"
    elif window.start_us >= cursor.through_us:
        reason = "it is not complete yet; its gate runs when it completes"
    else:
        reason = never_signalled_text(window, cursor) or "it is already signalled"
    more_text = " and others" if len(held) > MAX_HELD_LISTED else ""
    names = ", ".join(window.key for window in held[:MAX_HELD_LISTED]) + more_text
    return f"{label}: no gate holds {window}: {reason}. " + (f"Held windows: {names}" if held else "No window is held")


def is_dry_run(form: Form) -> bool:
    return bool(form.get("dry-run", True))


def build_run_conf(action: PageAction, name: str, form: Form) -> dict[str, Any]:
    dry = {"dry-run": is_dry_run(form)}
    if action is PageAction.RELEASE:
        reason, window = read_text(form, "reason"), _parse_window(form, "partition")
        if len(reason) < 3:
            raise InvalidForm("Enter a reason: it is stored with the window")
        return {"table": name, "partition": window.key, "reason": reason}
    if action is PageAction.REPLAY:
        return {"stream": name, "action": "replay", **dry}
    if action is PageAction.MAINTAIN:
        return {"tables": [name], **dry}
    times = {key: _parse_time(form, key).isoformat() for key in ("from-time", "to-time") if read_text(form, key)}
    if not times:
        raise InvalidForm("Enter a start or an end, as a Kafka timestamp")
    return {"stream": name, **times, **dry}


def parse_reset_target(form: Form) -> ResetTarget:
    to = read_text(form, "to")
    if to not in RESET_TARGETS:
        raise InvalidForm(f"Choose where to continue: {', '.join(RESET_TARGETS)}")
    return ResetTarget(to, at=_parse_time(form, "at") if to == "timestamp" else None)


def parse_day(form: Form) -> Window:
    day = _parse_window(form, "day")
    if day.grain is not Grain.DAY:
        raise InvalidForm(
            "Enter a day, such as 2013-12-30, not an hour: daily roll-ups need the events of all hours of the day"
        )
    return day


def read_text(form: Form, key: str) -> str:
    value = form.get(key, "")
    if not isinstance(value, str):
        raise InvalidForm(f"{key} is not a string")
    if problem := reason_problem(value.strip()):
        raise InvalidForm(f"{LABELS.get(key, key)}: {problem}")
    return value.strip()


def _parse_time(form: Form, key: str) -> datetime:
    text = read_text(form, key)
    if not text:
        raise InvalidForm(f"{LABELS[key]}: enter a time, such as 2013-12-30 00:00Z")
    try:
        moment = parse_moment(text)
    except ValueError as error:
        raise InvalidForm(f"{LABELS[key]}: {text!r} is not a time. Enter it as 2013-12-30 00:00Z") from error
    if moment.tzinfo is None:
        raise InvalidForm(f"{LABELS[key]}: add the time zone: Z for UTC, or an offset such as +02:00")
    return moment


def _parse_window(form: Form, key: str) -> Window:
    text = read_text(form, key)
    if not text:
        raise InvalidForm(f"{LABELS[key]}: enter a value")
    try:
        return Window.parse(re.sub(r"^([\d-]{10}) (\d\d):00$", r"\1T\2", text))  # as the page shows it
    except ValueError as error:
        raise InvalidForm(f"{LABELS[key]}: {error}") from error
