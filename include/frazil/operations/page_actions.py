"""Defines the page's actions and their effects, which users confirm. Finds missing Airflow components. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from frazil.timetext import format_elapsed, format_utc

MAX_HEARTBEAT_AGE_MS = 60_000
EFFECTS = {
    "scheduler": "no run or task starts, so nothing is measured, maintained or signalled, and your actions wait",
    "triggerer": "writers continue unsupervised: a writer that ends is not restarted, and a pause or resume waits",
    "dag-processor": "new streams and changed DAG files do not reach Airflow",
}


@dataclass(frozen=True, slots=True)
class ComponentHeartbeat:
    at_ms: int
    should_run: bool = True


@dataclass(frozen=True, slots=True)
class MissingComponent:
    component: str
    words: str
    """The component and the time of its last heartbeat, as the beginning of a sentence."""
    start: str

    def sentence(self, alerts_at_ms: int | None = None) -> str:
        as_of = (
            f" Alerts are as of {format_utc(alerts_at_ms)}." if alerts_at_ms and self.component == "scheduler" else ""
        )
        return f"{self.words}: {EFFECTS[self.component]}.{as_of} Start it: `{self.start}`"


def find_missing(
    heartbeats: Mapping[str, ComponentHeartbeat], *, now_ms: int, in_dev: bool = False
) -> tuple[MissingComponent, ...]:
    """Return the components without a recent heartbeat. `in_dev`: Airflow runs in `frazil dev up --airflow`."""
    return tuple(
        MissingComponent(
            component,
            f"Airflow's {component} {_last_seen(heartbeats.get(component), now_ms)}",
            "frazil dev up --airflow" if in_dev else f"airflow {component}",
        )
        for component in EFFECTS
        if not ((last := heartbeats.get(component)) and last.should_run and now_ms - last.at_ms <= MAX_HEARTBEAT_AGE_MS)
    )


def _last_seen(heartbeat: ComponentHeartbeat | None, now_ms: int) -> str:
    if heartbeat is None:
        return "has never run"
    if not heartbeat.should_run:
        return f"was stopped {format_elapsed(now_ms - heartbeat.at_ms)} ago"
    return f"has sent no heartbeat for {format_elapsed(now_ms - heartbeat.at_ms)}"


NO_WRITER_TEXT = "No writer runs on this host."


class PageAction(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"
    RESET = "reset"
    BACKFILL = "backfill"
    ABANDON = "abandon"
    REPLAY = "replay"
    MAINTAIN = "maintain"
    RELEASE = "release"
    SEND_AGAIN = "send-again"


STREAM_ACTIONS = frozenset(PageAction) - {PageAction.MAINTAIN, PageAction.RELEASE, PageAction.SEND_AGAIN}
DAG_ACTIONS = frozenset({PageAction.BACKFILL, PageAction.REPLAY, PageAction.MAINTAIN, PageAction.RELEASE})
PREPARED_ACTIONS = frozenset({PageAction.RESET, PageAction.ABANDON})
"""Actions whose effects depend on the table, which is read for the plan and the action."""
DEPENDENCIES: Mapping[PageAction, tuple[str, ...]] = {
    **dict.fromkeys((PageAction.PAUSE, PageAction.RESET), ("generation",)),
    **dict.fromkeys((PageAction.RESUME, PageAction.RESTART), ("generation", "dag_paused")),
    **dict.fromkeys((PageAction.BACKFILL, PageAction.REPLAY), ("backfill", "dag_paused")),
    **dict.fromkeys((PageAction.MAINTAIN, PageAction.RELEASE), ("dag_paused",)),
    **dict.fromkeys((PageAction.ABANDON, PageAction.SEND_AGAIN), ()),
}
"""Fields of `ActionContext`. If another user changes one of them after the plan, the action is refused."""
CONFIRMED_BY_NAME = frozenset(PageAction) - {PageAction.PAUSE, PageAction.RESUME, PageAction.RESTART}
"""Actions that change a table, or what its readers get. Users confirm by typing its name."""
DRY_RUN_ACTIONS = frozenset({PageAction.BACKFILL, PageAction.REPLAY, PageAction.MAINTAIN})
TABLE_DEPENDENT_ACTIONS = frozenset({PageAction.BACKFILL, PageAction.REPLAY})
REQUIRED_COMPONENTS: Mapping[PageAction, tuple[str, ...]] = {
    **dict.fromkeys((PageAction.PAUSE, PageAction.RESUME, PageAction.RESTART), ("triggerer",)),
    **dict.fromkeys(DAG_ACTIONS, ("scheduler",)),
    PageAction.SEND_AGAIN: ("scheduler", "triggerer"),
}


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    id: str
    waits: bool


@dataclass(frozen=True, slots=True)
class ActionContext:
    subject: str
    desired: str | None = None
    generation: int | None = None
    writer_runs: bool = False
    has_table: bool = True
    dag: str | None = None
    """The DAG that carries out the action, or that supervises the stream."""
    dag_paused: bool | None = None
    """Whether the DAG is paused; None if Airflow does not have the DAG."""
    may_unpause: bool = False
    unpauses: bool = False
    """Whether the user chose to unpause the DAG with the action."""
    refusal_reason: str | None = None
    backfill: str = ""
    run: UnfinishedRun | None = None
    """A run of the DAG that already changes the subject's tables."""
    silent: tuple[MissingComponent, ...] = ()
    staged: str = ""

    def version_token(self, action: PageAction) -> str:
        return ",".join(f"{name}={getattr(self, name)}" for name in DEPENDENCIES[action])


@dataclass(frozen=True, slots=True)
class Plan:
    action: PageAction
    effects: tuple[str, ...]
    refused: str | None = None
    missing: str | None = None
    version_token: str = ""
    """The token that a confirmation sends back, so that only the confirmed action is carried out."""
    retype: bool = False
    generation: int | None = None
    unpause: str | None = None
    """The paused DAG without which the action has no effect, if the user may unpause it."""


@dataclass(frozen=True, slots=True)
class PreparedAction:
    """The effects of an action on a table. `carry_out` has exactly these effects, or fails if the table has changed."""

    effects: tuple[str, ...]
    version_token: str
    carry_out: Callable[[], object]
    refused: str | None = None


def build_plan(action: PageAction, context: ActionContext, *, is_dry_run: bool = False) -> Plan:
    """Plan an action. The caller adds the effects of a prepared action, which depend on the table."""
    waits = component_warnings(action, context.silent)
    retype = action in CONFIRMED_BY_NAME and not (is_dry_run and action in DRY_RUN_ACTIONS)
    refused = _refusal(action, context, is_dry_run=is_dry_run)
    effects, token = (*_effects(action, context), *_run_effects(action, context), *waits), context.version_token(action)
    starts_writer = action in {PageAction.RESUME, PageAction.RESTART} and not context.writer_runs
    unpause = (
        context.dag if context.may_unpause and (action in DAG_ACTIONS or starts_writer) and context.dag_paused else None
    )
    return Plan(
        action, effects, refused, version_token=token, retype=retype, generation=context.generation, unpause=unpause
    )


def component_warnings(action: PageAction, silent: Iterable[MissingComponent]) -> tuple[str, ...]:
    return tuple(
        f"{component.words}: the action takes effect when the {component.component} runs again."
        for component in silent
        if component.component in REQUIRED_COMPONENTS.get(action, ())
    )


def describe_changes(action: PageAction, old_state: str, new_state: str) -> str:
    before_value, _, then_table = old_state.partition("/")
    parts, _, by_table = new_state.partition("/")
    was = dict(part.partition("=")[::2] for part in before_value.split(","))
    changes = [
        _CHANGE_TEXTS[name](was[name], value)
        for name, _, value in (part.partition("=") for part in parts.split(",") if part)
        if was.get(name, value) != value
    ]
    if then_table != by_table and then_table and by_table:
        changes.append(_TABLE_CHANGE_TEXTS[action])
    return ", and ".join(changes) or "the request does not confirm the shown plan"


def _describe_dag_change(old: str, new: str) -> str:
    if old == "None":
        return "its DAG was added to Airflow"
    texts = {"True": "its DAG was paused in Airflow", "False": "its DAG is no longer paused in Airflow"}
    return texts.get(new, "its DAG was removed from Airflow")


def _describe_backfill_change(old: str, new: str) -> str:
    if not new:
        return f"the backfill or replay {old} ended"
    return f"the backfill or replay changed from {old} to {new}" if old else f"the backfill or replay {new} started"


_CHANGE_TEXTS: Mapping[str, Callable[[str, str], str]] = {
    "generation": lambda _, __: "another user paused, resumed or restarted it",
    "dag_paused": _describe_dag_change,
    "backfill": _describe_backfill_change,
}
_TABLE_CHANGE_TEXTS: Mapping[PageAction, str] = {
    PageAction.RESET: "its position moved, or another target was requested",
    PageAction.ABANDON: "another backfill or replay is in progress",
}


_EFFECTS: Mapping[PageAction, str] = {
    PageAction.PAUSE: (
        "Nothing is lost: unread records stay in Kafka for its retention time.\n"
        "No writer starts until {subject} is resumed."
    ),
    PageAction.RESUME: (
        "Its supervisor in Airflow starts a writer within seconds. The writer continues from the table's position."
    ),
    PageAction.RESTART: "",
    PageAction.RESET: "{subject} continues from another position. No rows are deleted.",
    PageAction.BACKFILL: (
        "Records that are in Kafka but not in the table of {subject} are written to a branch, audited, and published "
        "in one commit, each of them exactly once.\n"
        "A dry run only logs what it would change."
    ),
    PageAction.ABANDON: (
        "The staged rows of the backfill of {subject} are removed. None of them is in the table yet.\n"
        "A running DAG run fails and is not retried. A queued run would start the backfill again: mark it as failed "
        "in Airflow."
    ),
    PageAction.REPLAY: (
        "The dead letters of {subject} are decoded again with the current declaration. Dead letters that succeed are "
        "written or merged, each exactly once; the others stay.\n"
        "A dry run shows which would fail again, and why. Its DAG run fails if all would."
    ),
    PageAction.MAINTAIN: (
        "{subject} is compacted, its manifests are rewritten and old snapshots expire, each only if due. Writers "
        "continue to run.\n"
        "A dry run only logs what it would change."
    ),
    PageAction.RELEASE: (
        "The window of {subject} is signalled with its current rows, although its quality gate did not pass. DAGs "
        "that wait for it start within a minute.\n"
        "Your name and your reason are stored with the window in frazil.signals."
    ),
    PageAction.SEND_AGAIN: (
        "The windows of this day of {subject} are signalled again. Every DAG that these signals start runs again, "
        "even if it has already processed the windows."
    ),
}
"""The effects of each action, one per line."""
_RERUNS = (
    "A run with the same form continues it. A run with another form starts after other runs of the DAG, and fails "
    "unless this backfill has been published or abandoned by then."
)


def _effects(action: PageAction, context: ActionContext) -> tuple[str, ...]:
    subject = context.subject
    if action is PageAction.MAINTAIN and subject.startswith("route of "):
        subject = f"Each table of the {subject} that needs it"
    texts = [text.format(subject=subject) for text in _EFFECTS[action].splitlines()]
    if action is PageAction.PAUSE:
        stop_effect = "Its writer stops after the current batch, which is committed first."
        texts.insert(0, stop_effect if context.writer_runs else NO_WRITER_TEXT)
    if action is PageAction.RESTART:
        effect = "The current batch commits first, then a new writer replaces this one."
        texts.append(effect if context.writer_runs else f"{NO_WRITER_TEXT} A new writer starts within seconds.")
        texts += [f"{context.subject} is paused; this action resumes it."] if context.desired == "paused" else []
    if action in {PageAction.RESUME, PageAction.RESTART}:
        texts += _supervision_warnings(context)
    if action is PageAction.BACKFILL and context.staged:
        texts += [context.staged, _RERUNS]
    return tuple(texts)


def _supervision_warnings(context: ActionContext) -> tuple[str, ...]:
    if context.dag_paused is None:
        return (f"Airflow has no DAG {context.dag}, so {context.subject} is not supervised and no writer starts.",)
    if context.dag_paused and not context.writer_runs:
        consequence = "this action unpauses it" if context.unpauses else "no writer starts until you unpause it"
        return (f"The DAG {context.dag} is paused in Airflow: {consequence}.",)
    return ()


def _run_effects(action: PageAction, context: ActionContext) -> tuple[str, ...]:
    if action not in DAG_ACTIONS or context.dag_paused is None:
        return ()
    pause_text = ", and unpauses it" if context.unpauses else ", which is paused: the run starts when you unpause it"
    return (f"This starts a run of the DAG {context.dag}{pause_text if context.dag_paused else ''}.",)


def _refusal(action: PageAction, context: ActionContext, *, is_dry_run: bool) -> str | None:
    if context.refusal_reason is not None:
        return context.refusal_reason
    if action in DAG_ACTIONS and (refusal := _run_refusal(context, is_dry_run=is_dry_run)):
        return refusal
    if action is PageAction.PAUSE and context.desired == "paused":
        return f"{context.subject} is already paused"
    if action is PageAction.RESET and context.writer_runs:
        return f"A writer of {context.subject} runs. Pause the stream first, and wait until it has stopped"
    if action in {PageAction.RESET, PageAction.RELEASE, PageAction.SEND_AGAIN} and not context.has_table:
        return f"The table of {context.subject} does not exist yet"
    return None


def _run_refusal(context: ActionContext, *, is_dry_run: bool) -> str | None:
    if context.dag_paused is None:
        return f"Airflow has no DAG {context.dag}, which carries out this action. Add it, or check its import errors"
    run = context.run
    if run is None or is_dry_run:
        return None
    does, end = (
        ("is queued", "mark that run as failed in Airflow")
        if run.waits
        else ("is running", "abandon its backfill or replay, or mark that run as failed in Airflow")
    )
    return (
        f"The run {run.id} of the DAG {context.dag} {does} for {context.subject}, and a second run would start after "
        f"it. Wait until it has ended. To replace it, {end}, and try again"
    )


UNFINISHED = ("queued", "running")
FAILED_TASKS = ("failed", "up_for_retry")
ACTIVE_TASKS = ("running", "deferred")


@dataclass(frozen=True, slots=True)
class TaskResult:
    task: str
    state: str
    message: str = ""
    """What the task reported with `frazil.airflow.dag_profile.report`, or the error with which it failed."""
    map_index: int = -1


@dataclass(frozen=True, slots=True)
class RunResult:
    state: str
    """The run's state in Airflow: queued, running, success or failed."""
    message: str
    log: str
    """The path, in Airflow's UI, of the task that explains the state, or of the run."""
    finished: bool


def describe_run(dag: str, run: str, state: str, tasks: Sequence[TaskResult], *, is_paused: bool) -> RunResult:
    """Return the state of a run. `tasks` are in the order in which they ended; those that have not ended come last."""
    sentence, task = _sentence(dag, state, tasks, is_paused=is_paused)
    path = f"/dags/{quote(dag)}/runs/{quote(run, safe='')}"
    if task is not None:
        mapped = f"/mapped/{task.map_index}" if task.map_index >= 0 else ""
        path = f"{path}/tasks/{quote(task.task)}{mapped}"
    return RunResult(state, sentence, path, finished=state not in UNFINISHED)


def _sentence(dag: str, state: str, tasks: Sequence[TaskResult], *, is_paused: bool) -> tuple[str, TaskResult | None]:
    if is_paused and state in UNFINISHED:
        return f"The run waits, because the DAG {dag} is paused in Airflow: unpause it.", None
    failed = next((task for task in tasks if task.state in FAILED_TASKS), None)
    if failed is not None:
        retry_text = " and will be retried" if failed.state == "up_for_retry" else ""
        return f"The task {failed.task} failed{retry_text}: {failed.message or 'its log has the error'}", failed
    if state == "success":
        reports = [task for task in tasks if task.message]
        text = "; ".join(dict.fromkeys(task.message.rstrip(".") for task in reports)) or "The run succeeded"
        return f"{text}.", reports[-1] if reports else None
    if state == "failed":
        return "The run failed before any of its tasks did: see the run in Airflow.", None
    active = next((task for task in tasks if task.state in ACTIVE_TASKS), None)
    return (f"The task {active.task} is running.", active) if active else (f"The run is {state}.", None)
