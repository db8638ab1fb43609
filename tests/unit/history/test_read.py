"""A damaged history can be read; a supervisor adds what the writer does not record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table

from frazil.history.objects import ActionLog, HistoryStore, read_history, read_table_history
from frazil.history.points import (
    MINUTE_MS,
    MINUTES_RETENTION_MS,
    TEN_MINUTES_MS,
    EventKind,
    HistoryEvent,
    HistoryPart,
    Point,
    RecordedHistory,
    StreamHistory,
)
from frazil.history.recorder import (
    MAX_PENDING_ACTIONS,
    RETRY_INTERVAL_MS,
    SupervisionRecorder,
    record_action,
)
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from frazil.table.storage import LocalStore
from frazil.table.tables import ensure_table

NOW = 1_800_000_000_000
SAID = HistoryEvent(NOW, EventKind.SUPERVISION, "the writer is started (crashed): it ended with signal 9")


@pytest.fixture
def spec(frazil_home: Path) -> StreamSpec:  # noqa: ARG001 - the embedded catalog's
    declared = {
        "name": "ticks",
        "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
        "table": "demo.ticks",
        "schema": {"ts": "timestamptz not null"},
        "event-time": "ts",
    }
    return validate_stream(declared, Path("ticks.yaml"))


@pytest.fixture
def table(spec: StreamSpec) -> Table:
    return ensure_table(load_catalog(None), spec)


def put(objects: HistoryStore, past: StreamHistory, epoch: int = 1) -> None:
    for part in HistoryPart:
        objects.put(epoch, past, part)


def test_a_stream_without_a_table_or_recorded_minutes_has_no_history_and_no_problem(spec: StreamSpec) -> None:
    assert read_history(spec, since_ms=0) == RecordedHistory()
    ensure_table(load_catalog(None), spec)
    assert read_history(spec, since_ms=0) == RecordedHistory()


def test_a_failing_catalog_is_reported_in_a_sentence(spec: StreamSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: StreamSpec) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("frazil.history.objects.load_stream_table", fails)
    assert read_history(spec, since_ms=0) == RecordedHistory(problem="cannot read the table: OSError: no route to host")


def test_a_storage_failure_is_reported_in_a_sentence(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(LocalStore, "list_files", fails)
    found = read_table_history(table, "ticks", since_ms=0)
    assert found == RecordedHistory(problem="cannot read the history: OSError: no route to host")


def test_history_returns_ten_minute_points_before_minutes_and_nothing_older_than_requested(
    spec: StreamSpec, table: Table
) -> None:
    past = StreamHistory()
    for at in range(NOW, NOW + 2 * MINUTES_RETENTION_MS, MINUTE_MS):
        past.add(Point(at, records=1))
    past.record(HistoryEvent(NOW, EventKind.EPOCH, "epoch 1 begins"))
    past.age(NOW + 2 * MINUTES_RETENTION_MS)
    put(HistoryStore.open(table, "ticks"), past)
    whole = read_history(spec, since_ms=0)
    assert sum(p.records for p in whole.points) == 2 * MINUTES_RETENTION_MS // MINUTE_MS
    assert {p.span_ms for p in whole.points[:10]} == {TEN_MINUTES_MS}
    assert {p.span_ms for p in whole.points[-10:]} == {MINUTE_MS}
    assert list(whole.points) == sorted(whole.points, key=lambda point: point.at_ms)
    since_ms = NOW + 2 * MINUTES_RETENTION_MS - 30 * MINUTE_MS
    recent = read_history(spec, since_ms=since_ms)
    assert recent.points == tuple(p for p in whole.points if p.end_ms > since_ms)
    assert (len(whole.events), recent.events) == (1, ())


def test_the_history_is_read_again_if_a_writer_takes_over_between_listing_and_reading(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, past = HistoryStore.open(table, "ticks"), StreamHistory()
    past.add(Point(NOW, records=7))
    put(objects, past, epoch=1)
    listed = HistoryStore.list_objects

    def overtaken(self: HistoryStore) -> list[object]:
        found = listed(self)
        if found[0].epoch == 1:
            put(objects, past, epoch=2)
            self.delete(found)
        return list(found)

    monkeypatch.setattr(HistoryStore, "list_objects", overtaken)
    assert [p.records for p in read_table_history(table, "ticks", since_ms=0).points] == [7]


def test_a_corrupt_history_object_is_reported_and_the_rest_is_read(table: Table) -> None:
    objects, past = HistoryStore.open(table, "ticks"), StreamHistory()
    past.add(Point(NOW, records=7))
    past.record(HistoryEvent(NOW, EventKind.EPOCH, "epoch 1 begins"))
    put(objects, past)
    objects.store.put(f"{objects.location}/00000001-happened.json", b"{")
    objects.store.put(f"{objects.location}/supervision.json", b"{")
    found = read_table_history(table, "ticks", since_ms=0)
    assert ([p.records for p in found.points], found.events) == ([7], ())
    assert found.problem is not None
    assert "00000001-happened.json" in found.problem
    assert "supervision.json" in found.problem


@pytest.fixture
def objects(tmp_path: Path) -> HistoryStore:
    return HistoryStore(LocalStore(), f"{tmp_path}/_frazil/_history/ticks", "uuid-1")


def reported(objects: HistoryStore) -> list[HistoryEvent]:
    found, problems = objects.read_actions(ActionLog.SUPERVISION)
    assert problems == []
    return found


def record(supervision: SupervisionRecorder, what: HistoryEvent | None, subject: str, now_ms: int = NOW) -> None:
    supervision.record(what, subject=subject, now_ms=now_ms)
    supervision.join(10)


def test_supervisor_actions_are_part_of_the_history(table: Table) -> None:
    objects, past = HistoryStore.open(table, "ticks"), StreamHistory()
    past.record(HistoryEvent(NOW - 1, EventKind.END, "the writer ended"))
    past.record(HistoryEvent(NOW + 1, EventKind.EPOCH, "epoch 2 begins"))
    put(objects, past)
    record(SupervisionRecorder(lambda: objects), SAID, "start")
    kinds = [what.kind for what in read_table_history(table, "ticks", since_ms=0).events]
    assert kinds == [EventKind.END, EventKind.SUPERVISION, EventKind.EPOCH]


def test_user_actions_are_in_the_history_and_a_failure_to_record_one_fails_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(SupervisionRecorder(lambda: HistoryStore.open(table, "ticks")), SAID, "start")
    for at_ms, said in ((NOW + 1, "the stream was reset"), (NOW - 1, "backfill b begins")):
        record_action(table, "ticks", said, at_ms=at_ms)
    monkeypatch.setattr(LocalStore, "put", lambda *_: 1 / 0)
    record_action(table, "ticks", "backfill b is published", at_ms=NOW + 2)
    found = read_table_history(table, "ticks", since_ms=0)
    assert found.events == (
        HistoryEvent(NOW - 1, EventKind.USER_ACTION, "backfill b begins"),
        SAID,
        HistoryEvent(NOW + 1, EventKind.USER_ACTION, "the stream was reset"),
    )


def test_an_unchanged_decision_is_reported_once_and_a_recurring_one_again(objects: HistoryStore) -> None:
    supervision = SupervisionRecorder(lambda: objects)
    for at in (NOW, NOW + 1, NOW + 2):
        record(supervision, HistoryEvent(at, EventKind.SUPERVISION, "the writer is started"), "start")
    record(supervision, None, "keep")
    record(supervision, HistoryEvent(NOW + 9, EventKind.SUPERVISION, "the writer is started"), "start")
    assert [what.at_ms for what in reported(objects)] == [NOW, NOW + 9]


def test_the_next_supervisor_repeats_no_event_and_keeps_those_recorded(objects: HistoryStore) -> None:
    for supervision in (SupervisionRecorder(lambda: objects), SupervisionRecorder(lambda: objects)):
        record(supervision, SAID, "start")
    record(supervision, HistoryEvent(NOW + 1, EventKind.SUPERVISION, "the writer is killed"), "kill")
    assert [what.at_ms for what in reported(objects)] == [NOW, NOW + 1]


def test_supervision_is_recorded_once_the_table_exists_and_the_catalog_responds(objects: HistoryStore) -> None:
    answers: Iterator[HistoryStore | Exception | None] = iter([None, OSError("no route"), objects])

    def opens() -> HistoryStore | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    supervision = SupervisionRecorder(opens)
    record(supervision, SAID, "start")
    for n in (1, 2):
        record(supervision, None, "keep", NOW + n * RETRY_INTERVAL_MS - 1)
        assert reported(objects) == []
        record(supervision, None, "keep", NOW + n * RETRY_INTERVAL_MS)
    assert reported(objects) == [SAID]


def test_a_supervisor_never_waits_for_a_hanging_catalog_and_pending_requests_are_bounded(objects: HistoryStore) -> None:
    answers = threading.Event()

    def hangs() -> HistoryStore:
        answers.wait(30)
        return objects

    supervision = SupervisionRecorder(hangs)
    for n in range(100):
        supervision.record(HistoryEvent(NOW + n, EventKind.SUPERVISION, f"decision {n}"), subject=str(n), now_ms=NOW)
    answers.set()
    supervision.join(10)
    record(supervision, None, "keep")
    sentences = [what.sentence for what in reported(objects)]
    assert sentences[-1] == "decision 99"
    assert len(sentences) <= 2 * MAX_PENDING_ACTIONS  # what the hanging write had, and what waited behind it
