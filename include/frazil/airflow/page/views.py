"""What the page's views ask for, from declarations, catalogs and Airflow, each within a deadline."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from frazil import clock
from frazil.airflow.audits.dag import DAG_ID as AUDITS
from frazil.airflow.declared import DeclaredStream, declared_streams
from frazil.airflow.maintenance.dag import DAG_ID as MAINTENANCE
from frazil.airflow.page.known import Measured, paused_dags, standing_alerts
from frazil.airflow.partitions.dag import partitions_dag_id
from frazil.airflow.writers.dag import writer_dag_id
from frazil.maintenance.tables import TableKind, maintained_tables
from frazil.operations.answers import Answer, Answers, Asked
from frazil.operations.look import (
    look_at_calendar,
    look_at_history,
    look_at_shape,
    look_at_stream,
    look_at_topics,
    look_at_windows,
    look_at_writers,
)
from frazil.operations.overview import (
    Around,
    Need,
    Overview,
    Seen,
    StandingAlert,
    Windows,
    by_stream,
    health_of,
    line_of,
    ordered,
)
from frazil.operations.stream_view import HAPPENED_MOST, StreamView, facts_of, partitions_of, runs_of, shown_partitions
from frazil.operations.table_view import Calendar, TableView, level_of
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_duration
from frazil.status.stream import StreamStatus
from frazil.timetext import utc

WITHIN_S = 1.6
"""The longest that any answer of the page takes: a little longer than what is silent needs to be known as such."""
KEEP_S, KEEP_DECLARED_S, KEEP_WINDOWS_S = 8.0, 8.0, 30.0
LOOKS_A_SECOND = 5
"""With many streams each is looked at less often, so that an open page costs the API server the same."""
MEASURED_LATE_MS = 20 * 60_000

Sees = Callable[[Mapping[str, str]], Collection[str]]
"""Of streams, each with the DAG of its writer, those that the signed-in user may see."""


@cache
def answers() -> Answers:
    """Those of this process of the API server."""
    return Answers()


def streams_folder() -> Path:
    """The folder of declared streams, as the DAG files name it."""
    return Path(os.environ.get("FRAZIL_STREAMS") or Path("include") / "streams").absolute()


def declared() -> Answer[list[DeclaredStream]]:
    """Every declared stream."""
    look = partial(declared_streams, streams_folder())
    return answers().one("declarations", "declarations", look, keep_s=KEEP_DECLARED_S, within_s=WITHIN_S)


def overview(sees: Sees) -> Overview:
    """One line for each stream that the user may see."""
    found = declared()
    everything = found.value or []
    may = set(sees({one.name: writer_dag_of(one) for one in everything}))
    shown = [one for one in everything if one.name in may]
    kept, keep_s = answers(), max(KEEP_S, len(shown) / LOOKS_A_SECOND)
    measured = kept.ask("Airflow", "alerts", standing_alerts, keep_s=KEEP_S)
    statuses = {one.name: ask_status(one.spec, keep_s=keep_s) for one in shown if one.spec}
    windows = {table: _ask_windows(specs, keep_s) for table, specs in feeding(everything).items() if specs[0].window}
    answered = dict(zip(statuses, kept.gather(statuses.values(), within_s=WITHIN_S), strict=True))
    known = dict(zip(windows, kept.gather(windows.values(), within_s=0), strict=True))
    (alerts,) = kept.gather([measured], within_s=0.2)
    care = _care(alerts.value, everything)
    now_ms = clock.now_ms()
    lines = []
    for one in shown:
        table = one.spec.table.identifier if one.spec else ""
        around = care(one, known[table].value if table in known else None)
        lines.append(line_of(one.name, one.spec, _seen(one, answered.get(one.name)), around, now_ms=now_ms))
    pending = any(answer.pending for answer in answered.values()) or any(answer.pending for answer in known.values())
    notes = tuple(_notes(found, alerts, now_ms=now_ms))
    # Whoever may not see all streams is not told of what several of them may share.
    needs = care.about_none if len(shown) == len(everything) else ()
    return Overview(now_ms, ordered(lines), pending, notes, needs)


def stream(name: str, sees: Sees, may_act: Callable[[str], bool]) -> StreamView | None:
    """One stream; None if no file declares it, or the user may not see it. `may_act` takes the id of a DAG."""
    one = next((one for one in declared().value or () if one.name == name), None)
    if one is None or not sees({name: writer_dag_of(one)}):
        return None
    spec, now_ms = one.spec, clock.now_ms()
    if spec is None:
        line = line_of(name, None, _seen(one, None), Around(), now_ms=now_ms)
        return StreamView(now_ms, line, {}, problems=tuple((one.problem or "").splitlines()))
    kept, group = answers(), _group(spec)
    history = kept.ask(group, ("history", *status_key(spec)), partial(look_at_history, spec), keep_s=KEEP_S)
    status = ask_status(spec)
    topics = kept.ask(f"Kafka of {name}", ("topics", *status_key(spec)), partial(look_at_topics, spec), keep_s=KEEP_S)
    writers = kept.ask("this host", ("writers", name), partial(look_at_writers, spec), keep_s=KEEP_S)
    dags = kept.ask("Airflow", ("dags", name), partial(paused_dags, _dags(spec)), keep_s=KEEP_S)
    (seen,), (told,) = kept.gather([status], within_s=WITHIN_S), kept.gather([history], within_s=0.1)
    (ends,), (runs,), (known,) = (
        kept.gather([topics], within_s=0.1),
        kept.gather([writers], within_s=0.1),
        kept.gather([dags], within_s=0.1),
    )
    partitions = partitions_of(told.value.marker if told.value else None, ends.value, spec)
    return StreamView(
        at_ms=clock.now_ms(),
        line=line_of(name, spec, _seen(one, seen), _around(one), now_ms=clock.now_ms()),
        facts=facts_of(spec),
        commits=told.value.commits if told.value else (),
        rejected=told.value.rejected if told.value else (),
        changes=told.value.changes if told.value else {},
        backfill=told.value.backfill if told.value else None,
        last_changes=seen.value.changes if seen.value else {},
        partitions=shown_partitions(partitions),
        partitions_in_all=len(partitions),
        runs=runs_of(runs.value),
        dags=known.value,
        pending=told.pending or seen.pending or ends.pending,
        may_act=may_act(writer_dag_of(one)),
        problems=tuple(_unread({"Kafka": ends, "The table": told, "The run folder": runs})),
        points=told.value.past.points if told.value else (),
        happened=tuple(reversed(told.value.past.happened[-HAPPENED_MOST:])) if told.value else (),
    )


def table(name: str, sees: Sees, may_act: Callable[[str], bool]) -> TableView | None:
    """One table that streams feed; None if none does, or the user may see none of these."""
    everything = declared().value or []
    known = maintained_tables(one.spec for one in everything if one.spec)
    found = next((one for one in known if one.name == name and one.kind is TableKind.MAIN), None)
    feeders = {spec.name for spec in found.streams} if found else set()
    shown = sees({one.name: writer_dag_of(one) for one in everything if one.name in feeders})
    if found is None or not shown:
        return None
    kept, group, spec = answers(), _group(found.streams[0]), found.streams[0]
    key = tuple(one.fingerprint() for one in found.streams)
    shape = kept.ask(group, ("shape", name, key), partial(look_at_shape, found), keep_s=KEEP_WINDOWS_S)
    calendar = partial(look_at_calendar, found.streams) if spec.window else None
    windows = kept.ask(group, ("calendar", name, key), calendar, keep_s=KEEP_WINDOWS_S) if calendar else None
    measured = kept.ask("Airflow", "alerts", standing_alerts, keep_s=KEEP_S)
    dags = kept.ask("Airflow", ("dags", name), partial(paused_dags, _dags(spec)[2:]), keep_s=KEEP_S)
    (seen,) = kept.gather([shape], within_s=WITHIN_S)
    complete: Answer[Calendar | None] = kept.gather([windows], within_s=0.3)[0] if windows else Answer()
    (alerts,) = kept.gather([measured], within_s=0.2)
    (paused,) = kept.gather([dags], within_s=0.2)
    subjects = {name, f"care of {name}", spec.dead_letter_table}
    standing = tuple(one for one in (alerts.value.alerts if alerts.value else ()) if one.subject in subjects)
    return TableView(
        at_ms=clock.now_ms(),
        table=name,
        level=level_of(seen.value, complete.value, standing),
        streams=tuple(sorted(shown)),
        every=format_duration(found.settings.every),
        shape=seen.value,
        calendar=complete.value,
        alerts=standing,
        dags=paused.value,
        pending=seen.at_ms is None or (windows is not None and complete.at_ms is None),
        may_act=may_act(MAINTENANCE),
        problems=tuple(_unread({"The table": seen, "Its windows": complete})),
    )


def writer_dag_of(one: DeclaredStream) -> str:
    """The DAG that runs its writer: that of the application, where streams share one."""
    return writer_dag_id((one.spec.application if one.spec else None) or one.name)


def _around(one: DeclaredStream) -> Around:
    """Of the table that a stream feeds, what is known by now."""
    everything = declared().value or []
    measured = answers().one("Airflow", "alerts", standing_alerts, keep_s=KEEP_S, within_s=0.2)
    care = _care(measured.value, everything)
    specs = feeding(everything)[one.spec.table.identifier] if one.spec else ()
    if not specs or not specs[0].window:
        return care(one, None)
    (windows,) = answers().gather([_ask_windows(specs, KEEP_S)], within_s=0.3)
    return care(one, windows.value)


@dataclass(frozen=True, slots=True)
class Care:
    """What `frazil_health` measured last, for each stream."""

    standing: Mapping[str, Sequence[StandingAlert]]
    tables: Mapping[str, Collection[str]]
    """By stream, those that it writes to."""
    due: Mapping[str, Sequence[str]] | None

    def __call__(self, one: DeclaredStream, windows: Windows | None) -> Around:
        alerts = self.standing.get(one.name, ())
        return Around(windows, alerts, health_of(self.tables.get(one.name, ()), alerts, self.due))

    @property
    def about_none(self) -> tuple[Need, ...]:
        return tuple(Need(alert.sentence, alert.runbook) for alert in self.standing.get("", ()))


def _care(measured: Measured | None, streams: Iterable[DeclaredStream]) -> Care:
    written: dict[str, set[str]] = {}
    writers: dict[str, list[str]] = {}
    for table in maintained_tables(one.spec for one in streams if one.spec):
        if table.kind is TableKind.SIGNALS:
            continue
        for spec in table.streams:
            written.setdefault(spec.name, set()).add(table.name)
            for name in {table.name, table.identifier}:  # windows are cared for by identifier
                writers.setdefault(name, []).append(spec.name)
    measured = measured or Measured()
    return Care(by_stream(measured.alerts, writers), written, measured.due)


def _unread(looks: Mapping[str, Answer[Any]]) -> Iterator[str]:
    for name, answer in looks.items():
        if answer.silent_since_ms is not None:
            yield f"{name} has not answered since {utc(answer.silent_since_ms)}"
        elif answer.problem:
            yield f"{name} cannot be read: {answer.problem}"


def _dags(spec: StreamSpec) -> tuple[str, ...]:
    table = spec.table.identifier
    writer = writer_dag_id(spec.application or spec.name)
    return (writer, AUDITS, partitions_dag_id(table), MAINTENANCE)


def ask_status(spec: StreamSpec, *, keep_s: float = KEEP_S) -> Asked[StreamStatus]:
    """Begin to look at a stream."""
    return answers().ask(_group(spec), status_key(spec), partial(look_at_stream, spec), keep_s=keep_s)


def status_key(spec: StreamSpec) -> tuple[str, str, str]:
    """By which its status is kept: another declaration is another stream."""
    return ("status", spec.name, spec.fingerprint())


def feeding(streams: Iterable[DeclaredStream]) -> dict[str, tuple[StreamSpec, ...]]:
    """The streams of each table, by its identifier."""
    found: dict[str, tuple[StreamSpec, ...]] = {}
    for one in streams:
        if one.spec is not None:
            table = one.spec.table.identifier
            found[table] = (*found.get(table, ()), one.spec)
    return found


def _ask_windows(specs: Sequence[StreamSpec], keep_s: float) -> Asked[Windows | None]:
    key = ("windows", *(spec.fingerprint() for spec in specs))
    look = partial(look_at_windows, specs)
    return answers().ask(_group(specs[0]), key, look, keep_s=max(KEEP_WINDOWS_S, keep_s))


def _group(spec: StreamSpec) -> str:
    return f"catalog {spec.table.catalog or 'default'}"


def _seen(one: DeclaredStream, answer: Answer[StreamStatus] | None) -> Seen:
    problem = None if one.missing else one.problem
    if answer is None:
        return Seen(problem=problem)
    return Seen(answer.value, answer.at_ms, answer.silent_since_ms, problem or answer.problem)


def _notes(found: Answer[list[DeclaredStream]], alerts: Answer[Measured], *, now_ms: int) -> Iterator[str]:
    """What concerns no single stream."""
    if found.problem:
        yield f"The declarations in {streams_folder()} cannot be read: {found.problem}"
    elif not found.value and not found.pending:
        yield f"The API server finds no stream in {streams_folder()}: declare one there, or set FRAZIL_STREAMS for it"
    measured = alerts.value
    if measured is None or not found.value:
        return
    if measured.at_ms is None:
        yield "Tables have not been measured yet, and no alert can fire: unpause the DAG frazil_health"
    elif now_ms - measured.at_ms > MEASURED_LATE_MS:
        yield f"Tables were measured last at {utc(measured.at_ms)}: see why the DAG frazil_health does not run"
