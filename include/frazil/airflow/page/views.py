"""What the page's views ask for, from declarations, catalogs and Airflow, each within a deadline."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from frazil import clock
from frazil.airflow.dag_ids import MAINTENANCE_DAG, writer_dag_id
from frazil.airflow.declared import DeclaredStream, declared_streams
from frazil.airflow.page.known import Measured, paused_dags, standing_alerts
from frazil.home import home
from frazil.maintenance.tables import TableKind, maintained_tables
from frazil.operations.answers import Answer, Answers, Asked
from frazil.operations.look import (
    look_at_stream,
    look_at_windows,
)
from frazil.operations.overview import (
    Around,
    Need,
    Overview,
    Seen,
    StandingAlert,
    Windows,
    by_stream,
    headline,
    health_of,
    line_of,
    ordered,
)
from frazil.operations.remembered import Remembered, remember, remembered
from frazil.spec.model import StreamSpec
from frazil.status.state import StreamState
from frazil.table.catalogs import catalogs_kept
from frazil.timetext import utc

WITHIN_S = 1.3
"""The longest that any answer of the page takes: a little longer than what is silent needs to be known as such."""
OVERVIEW_WITHIN_S, MORE_WITHIN_S = 0.4, 0.2
"""The overview waits so long if nothing at all is known yet, and so long for the rest: the page asks again soon, and
what hangs holds no line back."""
SAVED_EVERY_S, FOREVER_S = 60.0, 1e9
KEEP_S, KEEP_DECLARED_S, KEEP_WINDOWS_S = 8.0, 8.0, 30.0
LOOKS_A_SECOND = 5
"""With many streams each is looked at less often, so that an open page costs the API server the same."""
MAX_FINGERPRINTS = 5_000
MEASURED_LATE_MS = 20 * 60_000

Sees = Callable[[Mapping[str, str]], Collection[str]]
"""Of streams, each with the DAG of its writer, those that the signed-in user may see."""


@cache
def answers() -> Answers:
    """Those of this process of the API server."""
    return Answers(around=catalogs_kept)


def streams_folder() -> Path:
    """The folder of declared streams, as the DAG files name it."""
    return Path(os.environ.get("FRAZIL_STREAMS") or Path("include") / "streams").absolute()


def declared() -> Answer[list[DeclaredStream]]:
    """Every declared stream."""
    look = partial(declared_streams, streams_folder())
    return answers().one("declarations", "declarations", look, keep_s=KEEP_DECLARED_S, within_s=WITHIN_S)


def overview(sees: Sees, *, airflow: tuple[str, ...] = ()) -> Overview:
    """One line for each stream that the user may see.

    `airflow`: what is to be said of those of its processes that give no sign of life.
    """
    found = declared()
    everything = found.value or []
    may = set(sees({one.name: writer_dag_of(one) for one in everything}))
    shown = [one for one in everything if one.name in may]
    kept, keep_s = answers(), max(KEEP_S, len(shown) / LOOKS_A_SECOND)
    measured = kept.ask("Airflow", "alerts", standing_alerts, keep_s=KEEP_S)
    writers = sorted({writer_dag_of(one) for one in everything})
    known_by = [*writers, MAINTENANCE_DAG]
    dags = kept.ask("Airflow", ("dags of all", *known_by), partial(paused_dags, known_by), keep_s=KEEP_S)
    _recall(everything)
    statuses = {one.name: ask_status(one.spec, keep_s=keep_s) for one in shown if one.spec}
    feeds = feeding(everything)
    windows = {table: ask_windows(specs, keep_s) for table, specs in feeds.items() if specs[0].window}
    known_now = any(answer.at_ms for answer in kept.gather(statuses.values(), within_s=0))
    within_s = MORE_WITHIN_S if known_now else OVERVIEW_WITHIN_S
    answered = dict(zip(statuses, kept.gather(statuses.values(), within_s=within_s), strict=True))
    _save(shown, answered)
    known = dict(zip(windows, kept.gather(windows.values(), within_s=0), strict=True))
    (alerts,), (paused,) = kept.gather([measured], within_s=0.2), kept.gather([dags], within_s=0.1)
    care = care_of(alerts.value, everything)
    now_ms = clock.now_ms()
    lines = []
    for one in shown:
        complete = known.get(place_of(one.spec)) if one.spec else None
        around = care(one, complete.value if complete else None, paused.value)
        lines.append(line_of(one.name, one.spec, seen_of(one, answered.get(one.name)), around, now_ms=now_ms))
    pending = any(answer.pending for answer in answered.values()) or any(answer.pending for answer in known.values())
    notes = tuple(_notes(found, alerts, paused.value or {}, now_ms=now_ms))
    # Whoever may not see all streams is not told of what several of them may share.
    needs = care.about_none if len(shown) == len(everything) else ()
    said = headline(lines, airflow=airflow)
    return Overview(now_ms, ordered(lines), pending, notes, needs, airflow, said)


def _recall(streams: Iterable[DeclaredStream]) -> None:
    """Once in this process: what the page showed before it began."""
    kept, file = answers(), _remembered_file()
    look = partial(remembered, file, now_ms=clock.now_ms())
    found = kept.one("this host", ("remembered", file), look, keep_s=FOREVER_S, within_s=MORE_WITHIN_S)
    if not found.value:
        return
    specs = {(one.spec.name, fingerprint_of(one.spec)): one.spec for one in streams if one.spec}
    for one in found.value:
        if spec := specs.get((one.stream, one.fingerprint)):
            kept.remember(group_of(spec), status_key(spec), one.status, at_ms=one.at_ms)


def _save(streams: Iterable[DeclaredStream], answered: Mapping[str, Answer[StreamState]]) -> None:
    """In a thread of its own, for an API server that begins later."""
    known = [
        Remembered(one.name, fingerprint_of(one.spec), answer.at_ms, answer.value)
        for one in streams
        if one.spec and (answer := answered[one.name]).value is not None and answer.at_ms is not None
    ]
    if known:
        file = _remembered_file()
        answers().ask(
            "this host", ("saved", file), partial(remember, file, known, now_ms=clock.now_ms()), keep_s=SAVED_EVERY_S
        )


def _remembered_file() -> Path:
    return home() / "page" / "overview.json"


def writer_dag_of(one: DeclaredStream) -> str:
    """The DAG that runs its writer: that of the application, where streams share one."""
    return writer_dag_id((one.spec.application if one.spec else None) or one.name)


@dataclass(frozen=True, slots=True)
class Care:
    """What `frazil_health` measured last, for each stream."""

    standing: Mapping[str, Sequence[StandingAlert]]
    tables: Mapping[str, Collection[str]]
    """By stream, those that it writes to."""
    due: Mapping[str, Sequence[str]] | None
    names: Mapping[str, Mapping[str, str]]
    """By stream and identifier, its tables as maintenance names them: with the catalog where two have such a table."""

    def __call__(self, one: DeclaredStream, windows: Windows | None, dags: Mapping[str, bool] | None) -> Around:
        """`dags`: those that Airflow has, and whether each is paused."""
        writer = writer_dag_of(one)
        alerts = self.standing.get(one.name, ())
        health = health_of(self.tables.get(one.name, ()), alerts, self.due)
        paused = writer if (dags or {}).get(writer) else None
        return Around(windows, alerts, health, self.names.get(one.name, {}), paused)

    @property
    def about_none(self) -> tuple[Need, ...]:
        return tuple(Need(alert.sentence, alert.runbook) for alert in self.standing.get("", ()))


def care_of(measured: Measured | None, streams: Iterable[DeclaredStream]) -> Care:
    """By the streams that have a part in each table."""
    written: dict[str, set[str]] = {}
    writers: dict[str, list[str]] = {}
    names: dict[str, dict[str, str]] = {}
    for table in maintained_tables(one.spec for one in streams if one.spec):
        if table.kind is TableKind.SIGNALS:
            continue
        for spec in table.streams:
            written.setdefault(spec.name, set()).add(table.name)
            names.setdefault(spec.name, {})[table.identifier] = table.name
            for name in {table.name, table.identifier}:  # windows are cared for by identifier
                writers.setdefault(name, []).append(spec.name)
    measured = measured or Measured()
    return Care(by_stream(measured.alerts, writers), written, measured.due, names)


def unread(looks: Mapping[str, Answer[Any]]) -> dict[str, str]:
    """What could not be read, a sentence each."""
    return {name: said for name, answer in looks.items() if (said := _unread(name, answer))}


def _unread(name: str, answer: Answer[Any]) -> str | None:
    if answer.silent_since_ms is not None:
        return f"{name} has not answered since {utc(answer.silent_since_ms)}"
    if answer.problem is None or answer.outdated:
        return answer.problem
    return f"{name} cannot be read: {answer.problem}"


def ask_status(spec: StreamSpec, *, keep_s: float = KEEP_S, first: bool = False) -> Asked[StreamState]:
    """Begin to look at a stream."""
    look = partial(look_at_stream, spec)
    return answers().ask(group_of(spec), status_key(spec), look, keep_s=keep_s, first=first)


def status_key(spec: StreamSpec) -> tuple[str, str, str]:
    """By which its status is kept: another declaration is another stream."""
    return ("status", spec.name, fingerprint_of(spec))


_fingerprints: dict[int, tuple[StreamSpec, str]] = {}


def fingerprint_of(spec: StreamSpec) -> str:
    """As the declaration tells it, computed once for each time that it is read: it is asked for again and again."""
    known = _fingerprints.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_fingerprints) >= MAX_FINGERPRINTS:
            _fingerprints.clear()
        known = _fingerprints[id(spec)] = (spec, spec.fingerprint())
    return known[1]


def place_of(spec: StreamSpec) -> tuple[str | None, str]:
    """The stream's table: its catalog, and its identifier there."""
    return spec.table.catalog, spec.table.identifier


def feeding(streams: Iterable[DeclaredStream]) -> dict[tuple[str | None, str], tuple[StreamSpec, ...]]:
    """The streams of each table, by its place."""
    found: dict[tuple[str | None, str], tuple[StreamSpec, ...]] = {}
    for one in streams:
        if one.spec is not None:
            place = place_of(one.spec)
            found[place] = (*found.get(place, ()), one.spec)
    return found


def ask_windows(specs: Sequence[StreamSpec], keep_s: float) -> Asked[Windows | None]:
    """Begin to look how far a table is complete; `specs` are all streams that feed it."""
    key = ("windows", *map(fingerprint_of, specs))
    look = partial(look_at_windows, specs)
    return answers().ask(group_of(specs[0]), key, look, keep_s=max(KEEP_WINDOWS_S, keep_s))


def group_of(spec: StreamSpec) -> str:
    """The looks that share threads: those of one catalog."""
    return f"catalog {spec.table.catalog or 'default'}"


def seen_of(one: DeclaredStream, answer: Answer[StreamState] | None) -> Seen:
    """What a look gave, and what is wrong with the declaration."""
    wrong = "" if one.missing or not one.problem else one.problem.replace(f"{streams_folder()}/", "")
    file = Seen(conflict=wrong) if one.current else Seen(broken=wrong)
    if answer is None:
        return file
    seen = replace(file, status=answer.value, at_ms=answer.at_ms)
    if answer.outdated:
        return replace(seen, outdated=answer.problem)
    return replace(seen, silent_since_ms=answer.silent_since_ms, problem=answer.problem)


def _notes(
    found: Answer[list[DeclaredStream]], alerts: Answer[Measured], dags: Mapping[str, bool], *, now_ms: int
) -> Iterator[str]:
    """What concerns no single stream. `dags`: whether each is paused."""
    if found.problem:
        yield f"The declarations in {streams_folder()} cannot be read: {found.problem}"
    elif not found.value and not found.pending:
        yield f"The API server finds no stream in {streams_folder()}: declare one there, or set FRAZIL_STREAMS for it"
    if found.value and dags.get(MAINTENANCE_DAG):
        yield f"The DAG {MAINTENANCE_DAG} is paused in Airflow: no table is maintained before you unpause it"
    measured = alerts.value
    if alerts.problem:
        yield f"Alerts are not known, because Airflow's store does not answer: {alerts.problem}"
    if measured is None or not found.value:
        return
    if measured.at_ms is None:
        yield "Tables have not been measured yet, and no alert can fire: unpause the DAG frazil_health"
    elif now_ms - measured.at_ms > MEASURED_LATE_MS:
        yield f"Tables were measured last at {utc(measured.at_ms)}: see why the DAG frazil_health does not run"
