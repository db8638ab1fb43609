"""Plans and carries out the page's actions.

Pause, resume, restart, reset and signals are done here, as the command line does. Longer actions start a DAG run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagRunAlreadyExists
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy.exc import IntegrityError

from frazil import clock
from frazil.airflow.backfills.dag import DAG_ID as BACKFILL_DAG
from frazil.airflow.dag_ids import MAINTENANCE_DAG, partitions_dag_id
from frazil.airflow.dead_letters.dag import DAG_ID as DEAD_LETTERS_DAG
from frazil.airflow.page.alive import silent_now
from frazil.airflow.page.forms import (
    Form,
    Invalid,
    NotKnown,
    day_of,
    is_dry,
    missing_value,
    not_held,
    run_form,
    target_of,
    text_of,
)
from frazil.airflow.page.known import next_run_id, paused_dags, run_under_way
from frazil.airflow.page.one_table import feeders_of, find_table, views_of
from frazil.airflow.page.views import Sees, answers, declared, writer_dag_of
from frazil.airflow.partitions.dag import RELEASE_DAG
from frazil.errors import CommitUnavailable, DesiredMoved, SpecError
from frazil.host.launchers import open_launcher
from frazil.maintenance.tables import TableKind, routes
from frazil.operations.fetch import fetch_signals, fetch_standing
from frazil.operations.offers import Standing, refusal
from frazil.operations.page_actions import (
    BY_THE_TABLE,
    DEPENDS,
    OF_STREAMS,
    PREPARED,
    RUNS_A_DAG,
    ActionContext,
    PageAction,
    Plan,
    Prepared,
    moved,
    plan_of,
    waits_for,
)
from frazil.operations.resetting import plan_abandon, plan_reset, staged_words
from frazil.partitions.windows import Grain, windows_between
from frazil.signals.completion import send_again
from frazil.spec.model import StreamSpec
from frazil.supervise.desired import DesiredStore, open_desired
from frazil.table.lost import stream_catalog

WITHIN_S = 20.0
"""The longest wait for an action; the action itself continues after that."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action. `run` is the path in Airflow's UI of the DAG run that the action started."""

    said: str
    run: str | None = None


@dataclass(frozen=True, slots=True)
class ActionSubject:
    """A declared stream, or a table with one of the streams that feed it."""

    name: str
    spec: StreamSpec
    dag: str
    """The DAG whose permissions apply."""
    method: str
    """The HTTP method whose permission the action needs: POST to start a run of the DAG, PUT to change its stream or
    table.
    """
    turn: str | None = None
    """The name under which the maintenance DAG knows all tables of a route; None for other tables."""


def action_subject(action: PageAction, name: str, sees: Sees) -> ActionSubject | None:
    """Return the subject of an action; None if no file declares it or the user may not see it."""
    if action not in OF_STREAMS:
        return _table_of(action, name, sees)
    one = next((one for one in declared().value or () if one.name == name), None)
    if one is None or one.spec is None or not sees({name: writer_dag_of(one)}):
        return None
    dag, method = {
        PageAction.BACKFILL: (BACKFILL_DAG, "POST"),
        PageAction.ABANDON: (BACKFILL_DAG, "PUT"),
        PageAction.REPLAY: (DEAD_LETTERS_DAG, "POST"),
    }.get(action, (writer_dag_of(one), "PUT"))
    return ActionSubject(name, one.spec, dag, method)


def _table_of(action: PageAction, name: str, sees: Sees) -> ActionSubject | None:
    table = find_table(name)
    if (
        table is None
        or not feeders_of(table, sees)
        or (action is PageAction.MAINTAIN and table.kind is TableKind.DEAD_LETTERS)
    ):
        return None
    views = views_of(table)
    if action is PageAction.MAINTAIN:
        own, *_ = table.streams
        turn = next((turn for turn, spec in routes([own]).items()), None) if table.kind is TableKind.ROUTED else None
        return ActionSubject(name, own, MAINTENANCE_DAG, "POST", turn)
    if not views:
        return None
    if action is PageAction.RELEASE:
        return ActionSubject(name, views[0], RELEASE_DAG, "POST")
    return ActionSubject(name, views[0], partitions_dag_id(table.identifier), "PUT")


def planned(action: PageAction, subject: ActionSubject, form: Form) -> Plan:
    """Return the plan of an action. Raises Invalid, and the errors of catalogs and Kafka."""
    return _planned(action, subject, form, by="")[0]


def _planned(action: PageAction, subject: ActionSubject, form: Form, *, by: str) -> tuple[Plan, Prepared | None]:
    """Return the plan, and the prepared reset or abandonment if the action needs one."""
    plan = plan_of(action, _action_context(action, subject), dry=is_dry(form))
    plan = replace(plan, missing=missing_value(action, subject.turn or subject.name, form, now_ms=clock.now_ms()))
    spec = subject.spec
    if action is PageAction.RELEASE and not (plan.refused or plan.missing):
        plan = replace(plan, missing=not_held(form, within(partial(fetch_signals, spec))))
    if action not in PREPARED or plan.refused or plan.missing:
        return plan, None
    prepared = within(
        lambda: plan_reset(spec, target_of(form), by=by) if action is PageAction.RESET else plan_abandon(spec, by=by)
    )
    says, version_token = (*plan.says, *prepared.says), f"{plan.version_token}/{prepared.version_token}"
    return replace(plan, says=says, version_token=version_token, refused=prepared.refused), prepared


def _action_context(action: PageAction, subject: ActionSubject) -> ActionContext:
    spec = subject.spec
    paused = answers().one("plans", ("paused", subject.dag), partial(paused_dags, [subject.dag]), keep_s=1, within_s=2)
    runs = action in OF_STREAMS and open_launcher(spec.name).observe().process.is_alive
    if "dag_paused" in DEPENDS[action] and (
        paused.value is None or (subject.dag not in paused.value and paused.problem)
    ):
        why = paused.problem or "its database does not answer. Ask again once it does"
        raise Invalid(f"Airflow does not say whether it has the DAG {subject.dag}: {why}")
    found = ActionContext(
        subject.turn or subject.name,
        writer_runs=runs,
        dag=subject.dag,
        dag_paused=(paused.value or {}).get(subject.dag),
        unfit=refusal(action, spec, Standing()),
        silent=silent_now(),
    )
    if "generation" in DEPENDS[action]:
        return within(lambda: _with_desired(found, spec))
    if action in BY_THE_TABLE and not found.unfit and found.dag_paused is not None:
        run = within(partial(run_under_way, subject.dag, spec.name))
        return within(lambda: _with_table(replace(found, run=run), action, spec))
    return found


def _with_desired(found: ActionContext, spec: StreamSpec) -> ActionContext:
    store = open_desired(spec)
    try:
        desired = store.read()
    except SpecError:  # an action replaces what no one can read
        return replace(found, has_table=store.beside_table)
    return replace(found, desired=str(desired.mode), generation=desired.generation, has_table=store.beside_table)


def _with_table(found: ActionContext, action: PageAction, spec: StreamSpec) -> ActionContext:
    try:
        standing = fetch_standing(spec)
    except SpecError as error:
        return replace(found, unfit=str(error))
    found, backfill = replace(found, unfit=refusal(action, spec, standing)), standing.backfill
    if backfill is None or not backfill.is_open:
        return found
    return replace(found, backfill=f"{backfill.id} {backfill.state}", staged=staged_words(backfill))


def carry_out(action: PageAction, subject: ActionSubject, form: Form, *, user: str) -> Done:
    """Carry out an action. Raises Invalid, NotKnown, FrazilError, and the errors of catalogs and Kafka."""
    try:
        done = _carried_out(action, subject, form, user=user)
    except (CommitUnavailable, TimeoutError) as error:  # it may still land
        raise NotKnown(f"It is not known whether it was done: {error}. Look again before you repeat it") from error
    else:
        return replace(done, said=" ".join((done.said, *waits_for(action, silent_now()))))
    finally:
        answers().forget_all(subject.spec.fingerprint())


def _carried_out(action: PageAction, subject: ActionSubject, form: Form, *, user: str) -> Done:
    by, reason = f"{user}, Airflow", text_of(form, "reason")
    spec = subject.spec
    try:
        # Before the look for a run under way: one that comes between the two is found by it, or has this id.
        run_id = within(partial(next_run_id, subject.dag, spec.name)) if action in BY_THE_TABLE else None
        plan, prepared = _planned(action, subject, form, by=by)
    except (CommitUnavailable, TimeoutError) as error:
        raise Invalid(f"Nothing was done: {error}") from error
    if problem := plan.refused or plan.missing:
        raise Invalid(problem)
    version_token = text_of(form, "version_token")
    if not version_token and plan.version_token:
        raise Invalid(
            f"Nothing was done to {subject.name}: the request confirms no plan. Read the plan, then confirm it"
        )
    if plan.version_token != version_token:
        what = moved(action, version_token, plan.version_token)
        raise Invalid(f"{subject.name} has moved since you looked: {what}. Look again, and confirm what it says now")
    if action in RUNS_A_DAG:
        return _begin_run(subject, run_form(action, subject.turn or subject.name, form), run_id=run_id, user=user)
    if prepared is not None:
        within(prepared.carry_out)
        return Done(_ended(action, subject.name))
    if action is PageAction.SEND_AGAIN:
        return Done(within(lambda: _send_again(spec, form, by=by)))
    return Done(within(lambda: _set_desired(action, spec, by=by, reason=reason, generation=plan.generation)))


def _begin_run(subject: ActionSubject, conf: dict[str, Any], *, run_id: str | None, user: str) -> Done:
    try:
        run = trigger_dag(
            dag_id=subject.dag,
            run_id=run_id,
            triggered_by=DagRunTriggeredByType.UI,
            triggering_user_name=user,
            conf=conf,
        )
    except (DagRunAlreadyExists, IntegrityError) as error:
        raise Invalid(
            f"The same was requested just now: {subject.dag} has the run {run_id}. Look at what that one does"
        ) from error
    if run is None:
        raise Invalid(f"Airflow did not start {subject.dag}")
    path = f"/dags/{quote(subject.dag)}/runs/{quote(run.run_id, safe='')}"
    return Done(f"The run {run.run_id} of {subject.dag} is queued. Its log will show the result.", path)


def _ended(action: PageAction, name: str) -> str:
    if action is PageAction.RESET:
        return f"{name} has its new position. Resume it to go on there."
    return f"The backfill of {name} is abandoned, and what it staged is removed. Its run fails, and is not tried again."


def _set_desired(action: PageAction, spec: StreamSpec, *, by: str, reason: str, generation: int | None) -> str:
    desired = open_desired(spec)
    do = {PageAction.PAUSE: desired.pause, PageAction.RESUME: desired.resume, PageAction.RESTART: desired.restart}[
        action
    ]
    try:
        do(by=by, reason=reason, after=generation)
    except DesiredMoved as error:
        raise Invalid(f"Nothing was done: {error}") from error
    if spec.application and action is not PageAction.PAUSE:
        DesiredStore.of_application(spec.application).resume(by=by, reason=reason)
    runs = open_launcher(spec.name).observe().process.is_alive
    paused = "is pausing: its writer stops after the current batch" if runs else "is paused"
    done = {PageAction.PAUSE: paused, PageAction.RESUME: "is resumed", PageAction.RESTART: "gets a new writer"}[action]
    where = "" if desired.beside_table else " This holds on this host alone, for there is no table to keep it next to."
    return f"{spec.name} {done}.{where}"


def _send_again(spec: StreamSpec, form: Form, *, by: str) -> str:
    if spec.window is None:
        raise Invalid(f"The table of {spec.name} has no windows that are signalled")
    day = day_of(form)
    windows = list(windows_between(Grain(spec.window), day.start_us, day.end_us))
    table = spec.table.identifier
    sent = send_again(stream_catalog(spec), table, windows, note=f"sent again by {by}", clock_ms=clock.now_ms())
    return f"{len(sent)} windows of {table} are signalled again. Their events go out within a minute."


def within(work: Callable[[], T], *, seconds: float = WITHIN_S) -> T:
    """Return the result of a call that may hang. Raises TimeoutError if it does; the call then continues."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="frazil-action", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return done[0]
