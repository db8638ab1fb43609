"""What of a stream's running somebody should look at, beside its table's shape; as `frazil.maintenance.alert_rules`.

Pure. What is so or is not (a broken file, held windows, failed runs) is red as long as it is so: it has no hold, and is
over with its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from frazil.aggregate.due import WaitingDay
from frazil.maintenance.alert_rules import Reading
from frazil.spec.maintenance import Alerts
from frazil.timetext import ago, utc

FEWEST_RECORDS = 100
"""A share of fewer records says nothing, but that it is none."""
NAMED = 5
"""Of many windows or days, so many are named."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """How one stream runs. What is unknown is None."""

    name: str
    table: str
    problem: str | None = None
    """What is wrong with its declaration."""
    wanted: bool | None = True
    """Whether people want its writer to run."""
    alive: bool | None = True
    """Whether one runs: on this host, or by its commits on another."""
    ended_at_ms: int | None = None
    """When the last one of this host ended; None where none was ever started here."""
    last_words: str = ""
    fruitless: int = 0
    """Ends in a row within an hour that committed nothing and that nobody asked for."""
    waiting_batches: int | None = 0
    """Journaled batches that are not committed; looked for only where the last commit is long ago."""
    records: int = 0
    """Committed within an hour, dead letters among them."""
    rejected: int = 0


def stream_readings(state: StreamState, alerts: Alerts, *, now_ms: int) -> tuple[Reading, ...]:
    """Every rule of a stream; none where alerts are switched off."""
    return tuple(_of_stream(state, alerts, now_ms)) if alerts.enabled else ()


def _of_stream(state: StreamState, alerts: Alerts, now_ms: int) -> Iterator[Reading]:
    name, look = state.name, f"`frazil status {state.name}`"
    yield flag(
        "declaration",
        state.problem is not None,
        f"the declaration of stream {name} is broken. A writer that runs goes on, and Airflow's DAGs stay as they "
        f"were; no writer can be started. Mend the file; `frazil validate` says when it is sound: {state.problem}",
    )
    down_s = _down_s(state, now_ms)
    since = "ever on this host" if down_s == math.inf else f"for {ago(int((down_s or 0) * 1000))}"
    last_words = f" {state.last_words}" if state.last_words else ""
    yield Reading(
        "writer",
        down_s,
        alerts.writer_down.total_seconds(),
        "a writer runs, or none is wanted" if not down_s else f"no writer has run {since}",
        f"stream {name} is wanted, and no writer has run {since}.{last_words} {look} says more; its DAG "
        f"frazil_writer_{name} must be unpaused, and a triggerer must run. `frazil resume {name}` tries again what was "
        f"given up; `frazil pause {name}` says that none shall run",
    )
    yield Reading(
        "restarts",
        state.fruitless,
        alerts.restarts,
        f"{state.fruitless} starts without a commit",
        f"the writer of stream {name} ended {state.fruitless} times in a row without one commit: it is restarted, and "
        f"gets nowhere. {state.last_words} {look} and its writer.log say more",
    )
    yield Reading(
        "waiting-batches",
        state.waiting_batches,
        alerts.waiting_batches,
        f"{state.waiting_batches} batches wait for their commit",
        f"{state.waiting_batches} batches of stream {name} are staged and journaled, and not committed to "
        f"{state.table}: the catalog refuses them, or no writer runs that would commit them. {look}",
    )
    share = 100 * state.rejected / max(state.records, 1)
    says = state.records >= FEWEST_RECORDS or not state.rejected
    yield Reading(
        "dead-letters",
        share if says else None,
        alerts.dead_letters,
        f"{share:.1f} % of {state.records:,} records",
        f"{state.rejected:,} of the {state.records:,} records that stream {name} committed within the last hour are "
        f"dead letters. Their table has the reasons, by error_class: a producer changed what it sends, or the schema",
    )


def _down_s(state: StreamState, now_ms: int) -> float | None:
    if state.alive or state.wanted is False:
        return 0
    if state.wanted is None or state.alive is None:
        return None
    return math.inf if state.ended_at_ms is None else max(now_ms - state.ended_at_ms, 0) / 1000


def held_reading(table: str, held: Sequence[tuple[str, str]], alerts: Alerts) -> tuple[Reading, ...]:
    """Windows that quality gates hold: their keys, and what the gates said."""
    if not alerts.enabled:
        return ()
    said = "; ".join(f"{key}: {note}" for key, note in held[:NAMED]) + _more(len(held))
    return (
        flag(
            "held",
            bool(held),
            f"{table}: quality gates hold {len(held)} windows, which nobody is told of. {said}. Mend the data: late "
            "rows are judged anew. Or release them with the DAG frazil_release, or `frazil partitions TABLE --release`",
            f"{len(held)} windows held",
        ),
    )


def late_reading(name: str, target: str, late: Sequence[WaitingDay], within: timedelta) -> Reading:
    """Days of an aggregation that are complete and were not aggregated in time."""
    days = ", ".join(f"{one.day} (complete since {utc(one.since_ms)})" for one in late[:NAMED]) + _more(len(late))
    return flag(
        f"aggregation:{name}",
        bool(late),
        f"{target} lacks {days}: complete by the signals for more than {within}, and not aggregated by {name}. "
        f"frazil_reconcile_{name} asks for such days: unpause it and frazil_daily_{name}, and clear what failed there. "
        f"Or trigger frazil_daily_{name} with the day as the partition key",
        f"{len(late)} days late",
    )


def runs_reading(dag_id: str, failed: int | None, most: int) -> Reading:
    """Failed runs of a DAG in a row, the newest first; None where Airflow does not say."""
    return Reading(
        f"runs:{dag_id}",
        failed,
        most,
        "the last run ended well" if not failed else f"{failed} runs failed in a row",
        f"the last {failed} runs of the DAG {dag_id} failed, so that what it looks after is not looked after. The log "
        "of the failed task says why; a run that succeeds ends this",
    )


def flag(rule: str, is_so: bool, sentence: str, shown: str | None = None) -> Reading:
    """A rule about what is so or not: beyond while it is, at once, and over with it."""
    return Reading(rule, int(is_so), 0, shown or ("yes" if is_so else "no"), sentence, hold_ms=0)


def _more(count: int) -> str:
    return f" and {count - NAMED} more" if count > NAMED else ""
