"""The common profile of frazil's DAGs: names, tags, owners, default arguments, notifiers.

Three environment variables of the DAG processor, each an import path such as `alerts.slack:to_platform` (several with
commas), give every DAG its notifiers; what a factory is given goes before them. A fourth is a JSON object of Airflow's
own `default_args`, such as `{"owner": "data-platform", "queue": "small", "retries": 5}`, for every task that has no
such value of its own; under a purpose, such as `{"audit": {"queue": "large"}}`, for those of its DAGs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from airflow.sdk import BaseNotifier

from frazil.airflow.telling import Call, telling
from frazil.errors import SpecError
from frazil.operations.message import Message
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_duration, parse_duration

ON_FAILURE_VARIABLE = "FRAZIL_ON_FAILURE"
ON_RESOLVED_VARIABLE = "FRAZIL_ON_RESOLVED"
ON_LATE_VARIABLE = "FRAZIL_ON_LATE"
DEFAULT_ARGS_VARIABLE = "FRAZIL_DEFAULT_ARGS"
PURPOSES = frozenset({"writer", "partitions", "audit", "maintenance", "daily", "backfill", "dead letters"})
"""A DAG's purpose is a tag of it too."""
START_DATE = datetime(2026, 1, 1, tzinfo=UTC)
MAX_TAGS_PER_KIND = 10
"""Tags for streams, or for tables, and owners: a DAG about more is about all of them."""
SHORTEST = timedelta(minutes=1)
LONGEST_TAG = 100
"""Airflow's own limit."""

OnFailure = Call | Sequence[Call]
"""One whom a DAG tells, or several."""
MessageOf = Callable[[Any], Message | None]
"""What there is to tell, by the task's context."""


def dag_profile(  # noqa: PLR0913 - keywords, each with a default
    display_name: str,
    *,
    purpose: str,
    streams: Collection[str] = (),
    specs: Collection[StreamSpec] = (),
    tables: Collection[str] = (),
    marks: Iterable[str] = (),
    on_failure: OnFailure | None = None,
    **defaults: Any,
) -> dict[str, Any]:
    """The arguments of a DAG that all of frazil's share.

    :param display_name: what Airflow's lists show; search finds the DAG by it.
    :param purpose: the second tag, such as `writer`.
    :param streams: names of the streams that it is about; those of `specs` need not be repeated.
    :param specs: their declarations, which say who owns them.
    :param tables: tables that it is about.
    :param marks: further tags, such as `broken`.
    :param on_failure: notifiers of its tasks; without it those of FRAZIL_ON_FAILURE.
    :param defaults: its own default arguments, which those of FRAZIL_DEFAULT_ARGS precede.
    """
    about = {"stream": sorted({*streams, *(spec.name for spec in specs)}), "table": sorted(set(tables))}
    named = [f"{kind}:{name}" for kind, names in about.items() if len(names) <= MAX_TAGS_PER_KIND for name in names]
    owners = sorted({spec.owner for spec in specs if spec.owner})
    return {
        "dag_display_name": display_name,
        "tags": {"frazil", purpose, *marks, *(tag for tag in named if len(tag) <= LONGEST_TAG)},
        "start_date": START_DATE,
        "catchup": False,
        "default_args": {
            **defaults,
            **default_arguments(purpose),
            **({"owner": ", ".join(owners)} if 0 < len(owners) <= MAX_TAGS_PER_KIND else {}),
            "on_failure_callback": failure_notifiers(on_failure),
        },
    }


def default_arguments(purpose: str) -> dict[str, Any]:
    """FRAZIL_DEFAULT_ARGS for DAGs of that purpose. Raises SpecError if it is not a JSON object."""
    text = os.environ.get(DEFAULT_ARGS_VARIABLE)
    if not text:
        return {}
    example = '{"owner": "data-platform", "retries": 5}'
    try:
        said = json.loads(text)
    except ValueError as error:
        raise SpecError(f"{DEFAULT_ARGS_VARIABLE} is no JSON ({error}); write an object such as {example}") from None
    if not isinstance(said, Mapping):
        raise SpecError(f"{DEFAULT_ARGS_VARIABLE} is {text!r}; write a JSON object such as {example}")
    of_purpose = said.get(purpose, {})
    if not isinstance(of_purpose, Mapping):
        raise SpecError(f"{DEFAULT_ARGS_VARIABLE}: {purpose!r} is {of_purpose!r}; write an object such as {example}")
    return {**{name: value for name, value in said.items() if name not in PURPOSES}, **of_purpose}


def interval(variable: str, default: timedelta) -> timedelta:
    """How often a DAG runs, by an environment variable such as `30m`. Raises SpecError where that is no duration."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        said = parse_duration(text)
    except ValueError as error:
        raise SpecError(f"{variable} is {text!r}: {error}") from None
    if said < SHORTEST:
        raise SpecError(f"{variable} is {text!r}; a DAG runs each {format_duration(SHORTEST)} at most")
    return said


def failure_notifiers(given: OnFailure | None, message_of: MessageOf | None = None) -> list[Call]:
    """Called with the context of a task that failed for good, and the message of that as `frazil`."""
    return [telling(call, message_of) for call in _listed(given) or _named(ON_FAILURE_VARIABLE)]


def resolved_notifiers(given: OnFailure | None, message_of: MessageOf) -> list[Call]:
    """Called with a task's context when an alert ended, and the message of that as `frazil`."""
    return [telling(call, message_of) for call in _listed(given) or _named(ON_RESOLVED_VARIABLE)]


def late_callback() -> Any:
    """What FRAZIL_ON_LATE names: an async function, or None."""
    named = _named(ON_LATE_VARIABLE)
    return named[0] if named else None


def _listed(callbacks: OnFailure | None) -> list[Call]:
    if callbacks is None:
        return []
    return [callbacks] if callable(callbacks) else list(callbacks)


def _named(variable: str) -> list[Any]:
    paths = [path.strip() for path in os.environ.get(variable, "").split(",")]
    return [_imported(path, variable) for path in paths if path]


def _imported(path: str, variable: str) -> Any:
    """A function or a notifier; of a notifier's class, an instance. Raises SpecError where there is none."""
    module, _, attribute = path.partition(":")
    how = "write module:name, of a module that the DAG processor and the workers can import"
    if not attribute:
        raise SpecError(f"{variable}: {path!r} names no function; {how}")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{variable}: {path!r} cannot be imported: {error}; {how}") from error
    if isinstance(found, type) and issubclass(found, BaseNotifier):
        return found()
    if not callable(found):
        raise SpecError(f"{variable}: {path!r} is no function and no notifier; {how}")
    return found
