"""The page's actions. The effects of an action are described before the user confirms it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from frazil.operations.silence import Silent

NO_WRITER_NOW = "No writer runs on this host."


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


OF_STREAMS = frozenset(
    {
        PageAction.PAUSE,
        PageAction.RESUME,
        PageAction.RESTART,
        PageAction.RESET,
        PageAction.BACKFILL,
        PageAction.ABANDON,
        PageAction.REPLAY,
    }
)
"""Actions on a stream. The other actions are on a table."""
RUNS_A_DAG = frozenset({PageAction.BACKFILL, PageAction.REPLAY, PageAction.MAINTAIN, PageAction.RELEASE})
"""Actions that start a run in Airflow, which does the work."""
PREPARED = frozenset({PageAction.RESET, PageAction.ABANDON})
"""Actions whose effect depends on the table. The table is read for the plan, and again when the action is carried out.
"""
DEPENDS: Mapping[PageAction, tuple[str, ...]] = {
    PageAction.PAUSE: ("generation",),
    PageAction.RESUME: ("generation", "dag_paused"),
    PageAction.RESTART: ("generation", "dag_paused"),
    PageAction.RESET: ("generation",),
    PageAction.BACKFILL: ("backfill", "dag_paused"),
    PageAction.ABANDON: (),
    PageAction.REPLAY: ("backfill", "dag_paused"),
    PageAction.MAINTAIN: ("dag_paused",),
    PageAction.RELEASE: ("dag_paused",),
    PageAction.SEND_AGAIN: (),
}
"""The fields of `ActionContext` that an action depends on. The action is refused if they changed since the user saw the
plan.

Only users' decisions are among them: a process may end or start meanwhile. For prepared actions the state of the table
counts too.
"""
ALTERS = frozenset(
    {
        PageAction.RESET,
        PageAction.BACKFILL,
        PageAction.ABANDON,
        PageAction.REPLAY,
        PageAction.MAINTAIN,
        PageAction.RELEASE,
        PageAction.SEND_AGAIN,
    }
)
"""Actions that change the table or the data that its readers get. The user confirms them by typing the subject's name,
except for a dry run.
"""
HAS_DRY_RUN = frozenset({PageAction.BACKFILL, PageAction.REPLAY, PageAction.MAINTAIN})
BY_THE_TABLE = frozenset({PageAction.BACKFILL, PageAction.REPLAY})
"""Actions that the state of a stream's table may rule out."""


_TRIGGERER, _SCHEDULER = ("triggerer",), ("scheduler",)
NEEDS: Mapping[PageAction, tuple[str, ...]] = {
    PageAction.PAUSE: _TRIGGERER,
    PageAction.RESUME: _TRIGGERER,
    PageAction.RESTART: _TRIGGERER,
    **dict.fromkeys(RUNS_A_DAG, _SCHEDULER),
    PageAction.SEND_AGAIN: (*_SCHEDULER, *_TRIGGERER),
}
"""The Airflow components that must run for an action to take effect."""


@dataclass(frozen=True, slots=True)
class Run:
    """A DAG run in Airflow that has not ended."""

    id: str
    waits: bool
    """Whether the run is queued, so that none of its tasks has started."""


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The state of the subject when a user requests an action."""

    subject: str
    """The name of the stream or table."""
    desired: str | None = None
    generation: int | None = None
    """The generation of the desired state."""
    writer_runs: bool = False
    has_table: bool = True
    dag: str | None = None
    """The DAG that carries out the action, or that supervises the stream."""
    dag_paused: bool | None = None
    """Whether the DAG is paused; None if Airflow does not have the DAG."""
    unfit: str | None = None
    """Why the stream's declaration or state rules the action out."""
    backfill: str = ""
    """The id and state of the stream's open backfill or replay."""
    run: Run | None = None
    """A run of the DAG that is already changing the subject's tables."""
    silent: tuple[Silent, ...] = ()
    """Airflow components without a recent heartbeat."""
    staged: str = ""
    """A sentence on the progress of the stream's open backfill or replay."""

    def version_token(self, action: PageAction) -> str:
        """Return a token that changes with every field that the action depends on."""
        return ",".join(f"{name}={getattr(self, name)}" for name in DEPENDS[action])


@dataclass(frozen=True, slots=True)
class Plan:
    """The description of an action's effects. If `refused` is set, the action is not possible now."""

    action: PageAction
    says: tuple[str, ...]
    refused: str | None = None
    missing: str | None = None
    """The part of the form that the user must change first."""
    version_token: str = ""
    """Token of the plan. The confirmation sends it back, so that frazil does exactly what the user confirmed."""
    retype: bool = False
    """Whether the user confirms by typing the subject's name."""
    generation: int | None = None
    """The generation of the desired state that the action would replace."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The effects of an action on the current state of a table, and a function that carries out exactly these effects.

    `carry_out` raises if the table has changed since.
    """

    says: tuple[str, ...]
    version_token: str
    """A token that changes with the effects."""
    carry_out: Callable[[], object]
    refused: str | None = None


def plan_of(action: PageAction, now: ActionContext, *, dry: bool = False) -> Plan:
    """Describe the effects of an action.

    For a prepared action, the caller adds the effects that depend on the table.
    """
    says = {
        PageAction.PAUSE: _pause,
        PageAction.RESUME: _resume,
        PageAction.RESTART: _restart,
        PageAction.RESET: _reset,
        PageAction.BACKFILL: _backfill,
        PageAction.ABANDON: _abandon,
        PageAction.REPLAY: _replay,
        PageAction.MAINTAIN: _maintain,
        PageAction.RELEASE: _release,
        PageAction.SEND_AGAIN: _send_again,
    }[action](now)
    waits = waits_for(action, now.silent)
    retype = action in ALTERS and not (dry and action in HAS_DRY_RUN)
    refused = _refused(action, now, dry=dry)
    said = (*says, *_run_words(action, now), *waits)
    return Plan(
        action, said, refused, version_token=now.version_token(action), retype=retype, generation=now.generation
    )


def waits_for(action: PageAction, silent: Iterable[Silent]) -> tuple[str, ...]:
    """Return a sentence for each Airflow component that must be started before the action takes effect."""
    return tuple(
        f"{one.words}: this waits until it is back." for one in silent if one.component in NEEDS.get(action, ())
    )


def moved(action: PageAction, before: str, now: str) -> str:
    """Describe what changed between two version tokens of an action's plans, without a full stop."""
    then, _, then_table = before.partition("/")
    parts, _, by_table = now.partition("/")
    was = dict(one.partition("=")[::2] for one in then.split(","))
    said = [
        _MOVED[name](was[name], value)
        for name, _, value in (one.partition("=") for one in parts.split(",") if one)
        if was.get(name, value) != value
    ]
    if then_table != by_table and then_table and by_table:
        said.append(_MOVED_TABLE[action])
    return ", and ".join(said) or "the confirmed plan is not one of its plans"


def _moved_dag(was: str, now: str) -> str:
    if was == "None":
        return "Airflow has its DAG now"
    return {
        "True": "its DAG was paused in Airflow",
        "False": "its DAG is no longer paused in Airflow",
    }.get(now, "Airflow no longer has a DAG of it")


def _moved_backfill(was: str, now: str) -> str:
    if not now:
        return f"the backfill or replay {was} ended"
    return f"the backfill or replay is {now} now, and was {was}" if was else f"the backfill or replay {now} began"


_MOVED: Mapping[str, Callable[[str, str], str]] = {
    "generation": lambda _, __: "another user paused, resumed or restarted it",
    "dag_paused": _moved_dag,
    "backfill": _moved_backfill,
}
_MOVED_TABLE: Mapping[PageAction, str] = {
    PageAction.RESET: "its position moved, or another target was asked for",
    PageAction.ABANDON: "its backfill or replay under way is another one",
}
"""Descriptions of a changed table, for prepared actions."""


def _pause(now: ActionContext) -> tuple[str, ...]:
    stops = "Its writer stops after the current batch, which is committed first." if now.writer_runs else NO_WRITER_NOW
    return (
        stops,
        "Nothing is lost: records wait in Kafka, for as long as Kafka keeps them.",
        f"No writer starts until {now.subject} is resumed.",
    )


def _resume(now: ActionContext) -> tuple[str, ...]:
    supervised = "Its supervisor in Airflow starts a writer within seconds, and it goes on where the table stands."
    return (supervised, *_unsupervised(now))


def _restart(now: ActionContext) -> tuple[str, ...]:
    before = "The current batch commits first, then a new writer replaces this one." if now.writer_runs else ""
    resumed = f"{now.subject} is paused, and is resumed by this." if now.desired == "paused" else ""
    said = (before or f"{NO_WRITER_NOW} A new one starts within seconds.", resumed, *_unsupervised(now))
    return tuple(one for one in said if one)


def _unsupervised(now: ActionContext) -> tuple[str, ...]:
    if now.dag_paused is None:
        return (f"Airflow has no DAG {now.dag}: nothing supervises {now.subject}, so nothing starts.",)
    if now.dag_paused and not now.writer_runs:
        return (f"The DAG {now.dag} is paused in Airflow: nothing starts before you unpause it.",)
    return ()


def _reset(now: ActionContext) -> tuple[str, ...]:
    return (f"{now.subject} goes on from another position. No row is deleted.",)


def _backfill(now: ActionContext) -> tuple[str, ...]:
    return (
        (
            f"Records that Kafka has and the table of {now.subject} is missing are written to a branch, audited and "
            "published in one commit, each of them once."
        ),
        "A dry run says in its log what it would touch, and stops there.",
        *_open_backfill_words(now),
    )


def _open_backfill_words(now: ActionContext) -> tuple[str, ...]:
    if not now.staged:
        return ()
    return (
        now.staged,
        (
            "A run that asks for just the same goes on with it. One that asks for something else begins when no other "
            "run of the DAG is under way, and fails unless that backfill is published or abandoned by then."
        ),
    )


def _abandon(now: ActionContext) -> tuple[str, ...]:
    return (
        f"What the backfill of {now.subject} has staged is removed. The table has none of these rows yet.",
        (
            "A run of its DAG that is under way fails, and is not retried. A new run begins it again, also one that "
            "is queued in Airflow now: end that run in Airflow."
        ),
    )


def _replay(now: ActionContext) -> tuple[str, ...]:
    return (
        (
            f"The dead letters of {now.subject} are decoded again by the current declaration. Those accepted become "
            "rows or are merged, each dead letter once; the others stay."
        ),
        "A dry run only counts them.",
    )


def _maintain(now: ActionContext) -> tuple[str, ...]:
    who = f"Of the {now.subject}, each table that needs it" if now.subject.startswith("route of ") else now.subject
    return (
        (
            f"{who} is compacted, its manifests are rewritten and old snapshots expire, each where it is due. "
            "Writers go on meanwhile."
        ),
        "A dry run says in its log what it would do, and stops there.",
    )


def _release(now: ActionContext) -> tuple[str, ...]:
    return (
        (
            f"The window of {now.subject} is signalled as it stands, although its quality gate did not pass. DAGs that "
            "wait for it start within a minute."
        ),
        "Your name and your reason stay next to it in frazil.signals.",
    )


def _send_again(now: ActionContext) -> tuple[str, ...]:
    return (
        (
            f"The windows of that day of {now.subject} are signalled once more. Every DAG that starts from them runs "
            "again, also those that have had them."
        ),
    )


def _run_words(action: PageAction, now: ActionContext) -> tuple[str, ...]:
    if action not in RUNS_A_DAG or now.dag_paused is None:
        return ()
    waits = ", which is paused: the run waits until you unpause it" if now.dag_paused else ""
    return (f"This starts a run of the DAG {now.dag}{waits}.",)


def _refused(action: PageAction, now: ActionContext, *, dry: bool) -> str | None:
    if now.unfit is not None:
        return now.unfit
    if action in RUNS_A_DAG and (said := _no_run(now, dry=dry)):
        return said
    if action is PageAction.PAUSE and now.desired == "paused":
        return f"{now.subject} is paused already"
    if action is PageAction.RESET and now.writer_runs:
        return f"A writer of {now.subject} runs. Pause the stream first, and wait until it has stopped"
    if action in {PageAction.RESET, PageAction.RELEASE, PageAction.SEND_AGAIN} and not now.has_table:
        return f"There is no table of {now.subject} yet"
    return None


def _no_run(now: ActionContext, *, dry: bool) -> str | None:
    """Return why a run of the DAG cannot be started; None if it can."""
    if now.dag_paused is None:
        return f"Airflow has no DAG {now.dag}, which would do it. Add it to the DAG folder, or see its import errors"
    run = now.run
    if run is None or dry:
        return None
    does, end = (
        ("is queued", "mark that run as failed in Airflow")
        if run.waits
        else ("is running", "abandon what it has begun, or mark that run as failed in Airflow")
    )
    return (
        f"The run {run.id} of the DAG {now.dag} {does} for {now.subject}: a second one would begin after it, also if "
        f"a user abandoned the first. Wait until it has ended. If you want another one instead, {end}, and ask again"
    )
