"""Plans and carries out the page's actions. Short actions run in this process; longer actions start a DAG run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagRunAlreadyExists
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy.exc import IntegrityError

from frazil import clock
from frazil.airflow.backfills import DAG_ID as BACKFILL_DAG
from frazil.airflow.dag_ids import MAINTENANCE_DAG
from frazil.airflow.dead_letters import DAG_ID as DEAD_LETTERS_DAG
from frazil.airflow.page.airflow_database import find_unfinished_run, next_run_id, read_pauses, read_run_result, unpause
from frazil.airflow.page.forms import (
    Form,
    InvalidForm,
    OutcomeUnknown,
    build_run_conf,
    find_form_problem,
    find_release_problem,
    is_dry_run,
    parse_day,
    parse_reset_target,
    read_text,
)
from frazil.airflow.page.table_page import find_table, find_visible_streams, specs_for_table
from frazil.airflow.page.views import (
    SelectVisible,
    answer_cache,
    cached_declarations,
    find_missing_components,
    writer_dag_of,
)
from frazil.airflow.partitions.dag import RELEASE_DAG
from frazil.errors import CommitUnavailable, DesiredMoved, SpecError
from frazil.host.local import LocalLauncher
from frazil.maintenance.tables import TableKind, routes_by_name
from frazil.operations.fetch import fetch_action_state, fetch_signal_cursor
from frazil.operations.page_actions import (
    DAG_ACTIONS,
    DEPENDENCIES,
    PREPARED_ACTIONS,
    STREAM_ACTIONS,
    TABLE_DEPENDENT_ACTIONS,
    ActionContext,
    PageAction,
    Plan,
    PreparedAction,
    RunResult,
    build_plan,
    component_warnings,
    describe_changes,
)
from frazil.operations.stream_actions import ActionState, describe_staged, find_refusal, plan_abandon, plan_reset
from frazil.partitions.windows import Grain, windows_between
from frazil.signals.completion import resend_signals
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import partitions_dag_of
from frazil.supervise.desired_state import DesiredStore, open_desired_store
from frazil.table.lost_tables import open_stream_catalog
from frazil.table.parallel import DaemonThreads

T = TypeVar("T")
ACTION_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of an action. `run` is the id of the DAG run that it started, and `log` its path in Airflow's UI."""

    message: str
    run: str | None = None
    log: str | None = None


@dataclass(frozen=True, slots=True)
class ActionSubject:
    name: str
    spec: StreamSpec
    dag: str
    method: str
    """The HTTP method that the user needs permission for: POST starts a run, PUT changes a stream or table."""
    route_name: str | None = None
    """Name that stands for all tables of a route in the maintenance DAG; otherwise None."""


def find_action_subject(action: PageAction, name: str, select_visible: SelectVisible) -> ActionSubject | None:
    if action not in STREAM_ACTIONS:
        return _table_subject(action, name, select_visible)
    stream = next((stream for stream in cached_declarations().value or () if stream.name == name), None)
    if stream is None or stream.spec is None or not select_visible({name: writer_dag_of(stream)}):
        return None
    dag, method = {
        PageAction.BACKFILL: (BACKFILL_DAG, "POST"),
        PageAction.ABANDON: (BACKFILL_DAG, "PUT"),
        PageAction.REPLAY: (DEAD_LETTERS_DAG, "POST"),
    }.get(action, (writer_dag_of(stream), "PUT"))
    return ActionSubject(name, stream.spec, dag, method)


def _table_subject(action: PageAction, name: str, select_visible: SelectVisible) -> ActionSubject | None:
    table = find_table(name)
    if (
        table is None
        or not find_visible_streams(table, select_visible)
        or (action is PageAction.MAINTAIN and table.kind is TableKind.DEAD_LETTERS)
    ):
        return None
    views = specs_for_table(table)
    if action is PageAction.MAINTAIN:
        stream, *_ = table.streams
        route_name = next(iter(routes_by_name([stream])), None) if table.kind is TableKind.ROUTED else None
        return ActionSubject(name, stream, MAINTENANCE_DAG, "POST", route_name)
    if not views:
        return None
    if action is PageAction.RELEASE:
        return ActionSubject(name, views[0], RELEASE_DAG, "POST")
    return ActionSubject(name, views[0], partitions_dag_of(views[0]), "PUT")


def find_run(action: PageAction, name: str, run_id: str, sees: SelectVisible) -> RunResult | None:
    subject = find_action_subject(action, name, sees) if action in DAG_ACTIONS else None
    if subject is None:
        return None
    result = read_run_result(subject.dag, run_id, subject=subject.route_name or subject.name)
    if result is not None and result.finished:
        answer_cache().forget_all(subject.spec.fingerprint())  # the run may have changed what the views show
    return result


def build_action_plan(action: PageAction, subject: ActionSubject, form: Form, *, may_unpause: bool = False) -> Plan:
    """Return the plan that the user confirms. Raises InvalidForm, and the errors of catalogs and Kafka."""
    return _plan_and_prepare(action, subject, form, by="", may_unpause=may_unpause)[0]


def _plan_and_prepare(
    action: PageAction, subject: ActionSubject, form: Form, *, by: str, may_unpause: bool
) -> tuple[Plan, PreparedAction | None]:
    unpauses = may_unpause and form.get("unpause") is True
    context = replace(_action_context(action, subject), may_unpause=may_unpause, unpauses=unpauses)
    plan = build_plan(action, context, is_dry_run=is_dry_run(form))
    spec, name = subject.spec, subject.route_name or subject.name
    plan = replace(plan, missing=find_form_problem(action, name, form, now_ms=clock.now_ms()))
    if action is PageAction.RELEASE and not (plan.refused or plan.missing):
        plan = replace(plan, missing=find_release_problem(form, run_with_timeout(partial(fetch_signal_cursor, spec))))
    if action not in PREPARED_ACTIONS or plan.refused or plan.missing:
        return plan, None
    if action is PageAction.RESET:
        prepared = run_with_timeout(lambda: plan_reset(spec, parse_reset_target(form), by=by))
    else:
        prepared = run_with_timeout(lambda: plan_abandon(spec, by=by))
    effects, version_token = (*plan.effects, *prepared.effects), f"{plan.version_token}/{prepared.version_token}"
    return replace(plan, effects=effects, version_token=version_token, refused=prepared.refused), prepared


def _action_context(action: PageAction, subject: ActionSubject) -> ActionContext:
    spec = subject.spec
    read = partial(read_pauses, [subject.dag])
    paused = answer_cache().fetch_one("plans", ("paused", subject.dag), read, keep_s=1, timeout_s=2)
    runs = action in STREAM_ACTIONS and LocalLauncher(spec.name).observe().process.is_alive
    if "dag_paused" in DEPENDENCIES[action] and (
        paused.value is None or (subject.dag not in paused.value and paused.problem)
    ):
        reason = paused.problem or "its database does not respond. Try again when it does"
        raise InvalidForm(f"Cannot check in Airflow whether the DAG {subject.dag} exists: {reason}")
    context = ActionContext(
        subject.route_name or subject.name,
        writer_runs=runs,
        dag=subject.dag,
        dag_paused=(paused.value or {}).get(subject.dag),
        refusal_reason=find_refusal(action, spec, ActionState()),
        silent=find_missing_components(),
    )
    if "generation" in DEPENDENCIES[action]:
        return run_with_timeout(lambda: _add_desired_state(context, spec))
    if action in TABLE_DEPENDENT_ACTIONS and not context.refusal_reason and context.dag_paused is not None:
        run = run_with_timeout(partial(find_unfinished_run, subject.dag, spec.name))
        return run_with_timeout(lambda: _add_table_state(replace(context, run=run), action, spec))
    return context


def _add_desired_state(context: ActionContext, spec: StreamSpec) -> ActionContext:
    store = open_desired_store(spec)
    try:
        desired = store.read()
    except SpecError:  # an action replaces an unreadable state
        return replace(context, has_table=store.is_with_table)
    return replace(context, desired=str(desired.mode), generation=desired.generation, has_table=store.is_with_table)


def _add_table_state(context: ActionContext, action: PageAction, spec: StreamSpec) -> ActionContext:
    try:
        standing = fetch_action_state(spec)
    except SpecError as error:
        return replace(context, refusal_reason=str(error))
    context, backfill = replace(context, refusal_reason=find_refusal(action, spec, standing)), standing.backfill
    if backfill is None or not backfill.is_open:
        return context
    return replace(context, backfill=f"{backfill.id} {backfill.state}", staged=describe_staged(backfill))


def carry_out(
    action: PageAction, subject: ActionSubject, form: Form, *, user: str, may_unpause: bool = False
) -> ActionResult:
    """Carry out an action if the user confirmed exactly the current plan. Raises InvalidForm and OutcomeUnknown."""
    try:
        done = _check_and_carry_out(action, subject, form, user=user, may_unpause=may_unpause)
    except (CommitUnavailable, TimeoutError) as error:  # it may still land
        raise OutcomeUnknown(
            f"It is unknown whether the action was carried out: {error}. Check the state before you repeat it"
        ) from error
    else:
        return replace(done, message=" ".join((done.message, *component_warnings(action, find_missing_components()))))
    finally:
        answer_cache().forget_all(subject.spec.fingerprint())


def _check_and_carry_out(
    action: PageAction, subject: ActionSubject, form: Form, *, user: str, may_unpause: bool
) -> ActionResult:
    by, reason = f"{user}, Airflow", read_text(form, "reason")
    spec = subject.spec
    try:
        # Before the check for an unfinished run: a run that starts in between is found by the check, or has this id.
        next_id = partial(next_run_id, subject.dag, spec.name)
        run_id = run_with_timeout(next_id) if action in TABLE_DEPENDENT_ACTIONS else None
        plan, prepared = _plan_and_prepare(action, subject, form, by=by, may_unpause=may_unpause)
    except (CommitUnavailable, TimeoutError) as error:
        raise InvalidForm(f"Nothing was changed: {error}") from error
    if problem := plan.refused or plan.missing:
        raise InvalidForm(problem)
    version_token = read_text(form, "version_token")
    if not version_token and plan.version_token:
        problem = "the request does not confirm a plan. Read the plan, then confirm it"
        raise InvalidForm(f"Nothing was changed in {subject.name}: {problem}")
    if plan.version_token != version_token:
        changes = describe_changes(action, version_token, plan.version_token)
        changed = f"{subject.name} has changed since the plan was shown"
        raise InvalidForm(f"{changed}: {changes}. Check the new plan, then confirm it")
    if plan.unpause and form.get("unpause") is True:
        unpause(plan.unpause)
        answer_cache().forget(("paused", plan.unpause))
    if action in DAG_ACTIONS:
        conf = build_run_conf(action, subject.route_name or subject.name, form)
        return _start_run(subject, conf, run_id=run_id, user=user)
    if prepared is not None:
        run_with_timeout(prepared.carry_out)
        if action is PageAction.RESET:
            return ActionResult(f"{subject.name} has its new position. Resume it to continue from there.")
        sentence = f"The backfill of {subject.name} is abandoned, and its staged rows are removed."
        return ActionResult(f"{sentence} Its run fails and is not retried.")
    if action is PageAction.SEND_AGAIN:
        return ActionResult(run_with_timeout(lambda: _resend_day(spec, form, by=by)))
    change = partial(_set_desired, action, spec, by=by, reason=reason, generation=plan.generation)
    return ActionResult(run_with_timeout(change))


def _start_run(subject: ActionSubject, conf: dict[str, Any], *, run_id: str | None, user: str) -> ActionResult:
    try:
        run = trigger_dag(
            dag_id=subject.dag,
            run_id=run_id,
            triggered_by=DagRunTriggeredByType.UI,
            triggering_user_name=user,
            conf=conf,
        )
    except (DagRunAlreadyExists, IntegrityError) as error:
        raise InvalidForm(f"The same run was just requested: see the run {run_id} of {subject.dag}") from error
    if run is None:
        raise InvalidForm(f"Airflow did not start a run of {subject.dag}")
    path = f"/dags/{quote(subject.dag)}/runs/{quote(run.run_id, safe='')}"
    return ActionResult(f"The run {run.run_id} of {subject.dag} was created.", run.run_id, path)


def _set_desired(action: PageAction, spec: StreamSpec, *, by: str, reason: str, generation: int | None) -> str:
    desired = open_desired_store(spec)
    changes = {PageAction.PAUSE: desired.pause, PageAction.RESUME: desired.resume, PageAction.RESTART: desired.restart}
    try:
        changes[action](by=by, reason=reason, after=generation)
    except DesiredMoved as error:
        raise InvalidForm(f"Nothing was changed: {error}") from error
    if spec.application and action is not PageAction.PAUSE:
        DesiredStore(spec.application, None).resume(by=by, reason=reason)
    runs = LocalLauncher(spec.name).observe().process.is_alive
    effect_text = "is pausing: its writer stops after the current batch" if runs else "is paused"
    effect = {
        PageAction.PAUSE: effect_text,
        PageAction.RESUME: "is resumed",
        PageAction.RESTART: "is restarting with a new writer",
    }[action]
    where = "" if desired.is_with_table else " This applies to this host only, because the stream has no table yet."
    return f"{spec.name} {effect}.{where}"


def _resend_day(spec: StreamSpec, form: Form, *, by: str) -> str:
    if spec.window is None:
        raise InvalidForm(f"The table of {spec.name} has no signalled windows")
    day = parse_day(form)
    windows = list(windows_between(Grain(spec.window), day.start_us, day.end_us))
    table = spec.table.identifier
    catalog, note = open_stream_catalog(spec), f"sent again by {by}"
    sent = resend_signals(catalog, table, windows, note=note, clock_ms=clock.now_ms())
    return f"{len(sent)} windows of {table} are signalled again. Their events are sent within a minute."


def run_with_timeout(work: Callable[[], T]) -> T:
    """Return the result of a call. Raises TimeoutError after ACTION_TIMEOUT_S; the call then continues."""
    threads = DaemonThreads(1, "frazil-action")
    answer = threads.submit(work)
    wait([answer], ACTION_TIMEOUT_S)
    threads.close()
    if not answer.done() or answer.cancelled():
        raise TimeoutError(f"no response within {ACTION_TIMEOUT_S} s")
    return answer.result()
