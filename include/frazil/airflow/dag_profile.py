"""Builds what frazil's DAGs share: names, tags, owners, default arguments, notifiers, and `@task`. Airflow attaches a
plugin's links (`frazil.airflow.plugin`) by operator class, so frazil's tasks have their own classes.

Environment variables of the DAG processor configure all of these DAGs:

- FRAZIL_ON_FAILURE, FRAZIL_ON_RESOLVED and FRAZIL_ON_LATE name notifiers by import path, such as
  `alerts.slack:to_platform`; several are separated by commas. Notifiers that are passed to a DAG factory take
  precedence.
- FRAZIL_DEFAULT_ARGS is a JSON object of Airflow's `default_args`, such as `{"owner": "data-platform", "retries": 5}`.
  An object under a purpose, such as `{"audit": {"queue": "large"}}`, applies to the DAGs of that purpose only.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any
from urllib.parse import quote

from airflow.providers.standard.decorators.python import _PythonDecoratedOperator
from airflow.providers.standard.decorators.short_circuit import _ShortCircuitDecoratedOperator
from airflow.sdk import BaseNotifier, Param, get_current_context
from airflow.sdk.bases.decorator import task_decorator_factory
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from frazil.airflow.notifications import CONTEXT_KEY, Call, failure_message, with_message
from frazil.airflow.page.address import base_url, page_url
from frazil.clock import epoch_ms
from frazil.errors import FrazilError, SpecError
from frazil.operations.message import Message, build_late_run_message
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_duration, parse_duration

DEFAULT_ARGS_VARIABLE = "FRAZIL_DEFAULT_ARGS"
PURPOSES = frozenset({"writer", "partitions", "audit", "maintenance", "daily", "backfill", "dead letters"})
MAX_TAGS_PER_KIND = 10
"""Maximum number of stream tags, of table tags and of owners. Beyond it, a DAG gets no tags of this kind, or no owner.
"""
MIN_INTERVAL = timedelta(minutes=1)

OnFailure = Call | Sequence[Call]
MessageOf = Callable[[Any], Message | None]


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
    """Return the arguments of a DAG. `purpose` is a tag; FRAZIL_DEFAULT_ARGS overrides `defaults`."""
    about = {"stream": sorted({*streams, *(spec.name for spec in specs)}), "table": sorted(set(tables))}
    name_tags = [f"{kind}:{name}" for kind, names in about.items() if len(names) <= MAX_TAGS_PER_KIND for name in names]
    owners = sorted({spec.owner for spec in specs if spec.owner})
    return {
        "dag_display_name": display_name,
        "tags": {"frazil", purpose, *marks, *(tag for tag in name_tags if len(tag) <= 100)},
        "start_date": datetime(2026, 1, 1, tzinfo=UTC),
        "catchup": False,
        "default_args": {
            **defaults,
            **default_arguments(purpose),
            **({"owner": ", ".join(owners)} if 0 < len(owners) <= MAX_TAGS_PER_KIND else {}),
            "on_failure_callback": build_notifiers(on_failure),
        },
    }


def default_arguments(purpose: str) -> dict[str, Any]:
    text = os.environ.get(DEFAULT_ARGS_VARIABLE)
    if not text:
        return {}
    example = '{"owner": "data-platform", "retries": 5}'
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SpecError(f"{DEFAULT_ARGS_VARIABLE} is not JSON ({error}); write an object such as {example}") from None
    if not isinstance(value, Mapping):
        raise SpecError(f"{DEFAULT_ARGS_VARIABLE} is {text!r}; write a JSON object such as {example}")
    of_purpose = value.get(purpose, {})
    if not isinstance(of_purpose, Mapping):
        raise SpecError(f"{DEFAULT_ARGS_VARIABLE}: {purpose!r} is {of_purpose!r}; write an object such as {example}")
    return {**{name: value for name, value in value.items() if name not in PURPOSES}, **of_purpose}


def names_param(names: list[str], description: str) -> Param:
    """Return a form's field for a list of these names. If `names` is empty, users may enter any name."""
    items = {"type": "string", **({"enum": names} if names else {})}
    return Param([], type="array", items=items, examples=names, description=description)


def read_interval(variable: str, default: timedelta) -> timedelta:
    """Return a DAG's interval, such as `30m`. Raises SpecError if the duration is invalid or too short."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        value = parse_duration(text)
    except ValueError as error:
        raise SpecError(f"{variable} is {text!r}: {error}") from None
    if value < MIN_INTERVAL:
        raise SpecError(f"{variable} is {text!r}; the minimum is {format_duration(MIN_INTERVAL)}")
    return value


def build_notifiers(
    on_failure: OnFailure | None, message_of: MessageOf = failure_message, variable: str = "FRAZIL_ON_FAILURE"
) -> list[Call]:
    """Return the notifiers. Each finds the message under the key `frazil` of the task's context."""
    calls = [on_failure] if callable(on_failure) else list(on_failure or ())
    return [with_message(call, message_of) for call in calls or _notifiers_from(variable)]


def _notifiers_from(variable: str) -> list[Any]:
    paths = [path.strip() for path in os.environ.get(variable, "").split(",")]
    return [_load_callback(path, variable) for path in paths if path]


def _load_callback(path: str, variable: str) -> Any:
    """Import a function or notifier; instantiate a notifier class. Raises SpecError if it is not callable."""
    module, _, attribute = path.partition(":")
    hint = "write module:name of a module that the DAG processor and the workers can import"
    if not attribute:
        raise SpecError(f"{variable}: {path!r} does not name a function; {hint}")
    try:
        callback = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{variable}: {path!r} cannot be imported: {error}; {hint}") from error
    if isinstance(callback, type) and issubclass(callback, BaseNotifier):
        return callback()
    if not callable(callback):
        raise SpecError(f"{variable}: {path!r} is not a function or notifier; {hint}")
    return callback


RESULT_KEY = "frazil_result"
"""The XCom with the sentence that the operations page shows as a task's result."""
MAX_RESULT_CHARACTERS = 1_000


def report(sentence: str) -> None:
    log.info("%s", sentence)
    _store(sentence)


def _store(sentence: str) -> None:
    """Store a sentence for the operations page. An error here does not change the task's outcome."""
    try:
        get_current_context()["ti"].xcom_push(key=RESULT_KEY, value=sentence[:MAX_RESULT_CHARACTERS])
    except Exception:  # whatever Airflow raises
        log.warning("cannot store the task's result for the operations page", exc_info=True)


@contextmanager
def reported_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _store(str(error) if isinstance(error, AirflowException) else f"{type(error).__name__}: {error}")
        raise


class FrazilTask(_PythonDecoratedOperator):
    def execute(self, context: Any) -> Any:
        with reported_errors():
            return super().execute(context)


class FrazilShortCircuit(_ShortCircuitDecoratedOperator):
    def execute(self, context: Any) -> Any:
        with reported_errors():
            return super().execute(context)


def run_name(context: Any) -> str:
    """Return a run's name, the same for all tries. It includes the run's date, because Airflow may reuse a run's id."""
    return f"{context['dag'].dag_id}/{context['run_id']} of {context['dag_run'].run_after.isoformat()}"


@contextmanager
def fail_on_user_errors() -> Iterator[None]:
    """Fail the task without retries on errors that a user has to correct. Other errors are retried."""
    try:
        yield
    except FrazilError as error:
        if error.restartable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def task(function: Callable[..., Any] | None = None, kind: type[Any] = FrazilTask, **settings: Any) -> Any:
    return task_decorator_factory(function, decorated_operator_class=kind, **settings)


log = logging.getLogger(__name__)

OnLate = Callable[..., Awaitable[None]]
"""An async function at the top level of a module that the triggerer can import.

It gets the argument `sentence`. If it has a parameter `context`, it also gets Airflow's context, with the message under
the key `frazil`.
"""


def deadline(interval: timedelta, *, sentence: str, on_late: OnLate | None = None) -> DeadlineAlert:
    """Return a deadline that reports `sentence` if a run has not ended within `interval` after it was queued."""
    target = AsyncCallback(on_late or next(iter(_notifiers_from("FRAZIL_ON_LATE")), log_late_run))
    callback = AsyncCallback(notify_late, kwargs={"sentence": sentence, "to": target.path})
    return DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=interval, callback=callback)


async def notify_late(*, sentence: str, to: str, context: Mapping[str, Any]) -> None:
    """Call the function at the import path `to` with the message, in the triggerer."""
    module, _, name = to.rpartition(".")
    on_late = getattr(import_module(module), name)
    extended = {"context": {**context, CONTEXT_KEY: _message(sentence, context.get("dag_run") or {})}}
    parameters = inspect.signature(on_late).parameters.values()
    takes_it = any(
        parameter.name == "context" or parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters
    )
    await on_late(sentence=sentence, **(extended if takes_it else {}))


def _message(sentence: str, run: Mapping[str, Any]) -> Message:
    """Return the message about a late DAG run. `run` has the format of Airflow's REST API."""
    dag_id, run_id, queued = (str(run.get(key) or "") for key in ("dag_id", "dag_run_id", "queued_at"))
    return build_late_run_message(
        dag_id=dag_id or "a frazil DAG",
        sentence=sentence,
        since_ms=epoch_ms(datetime.fromisoformat(queued)) if queued else None,
        run=f"{base_url()}/dags/{quote(dag_id)}/runs/{quote(run_id)}" if base_url() and run_id else "",
        overview=page_url(),
    )


async def log_late_run(*, context: Mapping[str, Any], **_: Any) -> None:
    log.error("%s", context[CONTEXT_KEY].text)
