"""Signals on a real catalog: one per revision of a window, with the row count of its snapshot."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from frazil.commit import history as late_rows_module
from frazil.commit.history import WINDOWS_KEY, late_rows, windows_summary
from frazil.commit.marker_changes import adopt, forget
from frazil.errors import CommitUnavailable, MarkerUnreadable, SpecError
from frazil.partitions.completeness import Cursor
from frazil.partitions.window_rows import count_rows
from frazil.partitions.windows import Grain, Window
from frazil.signals.completion import (
    Assessment,
    GateOutcome,
    assess_table,
    release_window,
    resend_signals,
    signal_windows,
)
from frazil.signals.signal_table import SIGNALS_TABLE, SignalState, TableSignals, load_newest_signals
from frazil.spec.load import find_streams_of
from frazil.table.branches import head_of
from tests.unit.signals.minutes import HOUR, MINUTE, NOON, NOW_MS, Minutes, facts


@pytest.fixture
def minutes(tmp_path: Path, frazil_home: Path) -> Minutes:  # noqa: ARG001
    stream = Minutes(tmp_path)
    stream.made.begin()
    return stream


def fails(seen: Assessment, windows: Sequence[Window]) -> dict[Window, GateOutcome]:  # noqa: ARG001
    return dict.fromkeys(windows, GateOutcome(passed=False, note="carrier is null in 3 rows"))


def test_each_window_is_signalled_once_with_its_rows(minutes):
    minutes.send(0, 10)
    assert minutes.signal() == []
    minutes.send(10, 130)
    assert minutes.signal() == [("T12", 1, 60, 0), ("T13", 1, 60, 0)]
    assert minutes.signal() == []
    minutes.send(130, 181)
    assert minutes.signal() == [("T14", 1, 60, 0)]
    assert minutes.stored() == [("T12", 1, 60, 0), ("T13", 1, 60, 0), ("T14", 1, 60, 0)]


def test_windows_before_the_first_check_are_not_signalled_unless_declared_with_complete_from(minutes, tmp_path):
    minutes.send(0, 130)
    assert minutes.signal() == []
    other = Minutes(tmp_path, extra="complete-from: 2013-12-30T10:00:00Z\n")
    assert assess_table(minutes.catalog, [other.spec]).decision.complete == ()  # the first look has decided


def test_complete_from_reaches_back_and_empty_windows_are_complete_too(tmp_path, frazil_home):  # noqa: ARG001
    stream = Minutes(tmp_path, extra="complete-from: 2013-12-30T11:00:00Z\n")
    stream.made.begin()
    stream.send(0, 30)
    stream.send(125, 130)
    assert stream.signal() == [("T11", 1, 0, 0), ("T12", 1, 30, 0), ("T13", 1, 0, 0)]


def test_late_rows_reopen_their_window_once(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 130)
    minutes.signal()
    minutes.send(5, 8)
    minutes.send(6, 7)
    assert minutes.signal() == [("T12", 2, 64, 4)]
    assert minutes.signal() == []
    minutes.send(65, 66)
    assert minutes.signal() == [("T13", 2, 61, 1)]


def test_signals_of_two_checks_at_once_are_sent_once(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 70)
    first, second = minutes.assess(), minutes.assess()
    assert len(signal_windows(minutes.catalog, first, clock_ms=NOW_MS)) == 1
    assert signal_windows(minutes.catalog, second, clock_ms=NOW_MS) == ()
    assert len(minutes.stored()) == 1
    data = Path(minutes.catalog.load_table(SIGNALS_TABLE).location().removeprefix("file://")) / "data"
    assert len(list(data.rglob("*.parquet"))) == 1, "what the slower one wrote is gone"


def test_a_signal_append_with_a_lost_response_is_written_once(minutes, monkeypatch):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 70)
    commit, lost = type(minutes.catalog).commit_table, []

    def lose_the_first(self: Any, *args: Any) -> Any:
        answer = commit(self, *args)
        if not lost:
            lost.append(1)
            raise ConnectionError("the answer was lost")
        return answer

    monkeypatch.setattr(type(minutes.catalog), "commit_table", lose_the_first)
    assert minutes.signal() == [("T12", 1, 60, 0)] == minutes.stored()


def test_several_streams_complete_a_window_together(minutes, tmp_path):
    other = Minutes(tmp_path, name="others")
    minutes.send(0, 70)
    assert minutes.assess(other).decision.through_us is None, "a declared stream that has not begun holds all open"
    other.made.begin()
    other.send(0, 30)
    signal_windows(minutes.catalog, minutes.assess(other), clock_ms=NOW_MS)
    minutes.send(70, 130)
    seen = minutes.assess(other)
    assert seen.decision.complete == ()
    assert (
        "the newest event of stream others in partition others-0 is from 2013-12-30T12:29:00Z" in seen.decision.reason
    )
    other.send(30, 65)
    (found,) = signal_windows(minutes.catalog, minutes.assess(other), clock_ms=NOW_MS)
    assert facts(found) == ("T12", 1, 120, 0)


def test_a_gate_holds_a_window_until_its_release_and_other_windows_continue(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 70)
    minutes.signal(fails)
    minutes.send(70, 130)
    minutes.signal()
    seen = TableSignals.load(minutes.catalog, "demo.minutes")
    assert [(s.partition[-3:], s.state) for s in seen.after(0)] == [
        ("T12", SignalState.HELD),
        ("T13", SignalState.COMPLETE),
    ]
    assert seen.cursor is not None
    assert seen.cursor.held == {NOON}
    noon = Window(NOON, Grain.HOUR)
    minutes.made.tables.main.refresh().delete("at < '2013-12-30T12:10:00+00:00'")
    freed = release_window(minutes.catalog, minutes.spec, noon, note="released by op: known outage", clock_ms=NOW_MS)
    assert (freed.revision, freed.rows, freed.state, freed.sent) == (1, 50, SignalState.RELEASED, True)
    assert freed.snapshot_id == head_of(minutes.made.tables.main.refresh().metadata).snapshot_id
    (newest, _) = load_newest_signals(minutes.catalog, "demo.minutes", from_us=NOON, to_us=NOON + 2 * HOUR)
    assert newest.note == "released by op: known outage"
    with pytest.raises(SpecError, match=r"window 2013-12-30T12 of demo\.minutes is not held"):
        release_window(minutes.catalog, minutes.spec, noon, note="again", clock_ms=NOW_MS)


def test_late_rows_evaluate_the_gate_again_and_an_unsent_signal_keeps_its_revision(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 70)
    minutes.signal(fails)
    minutes.send(1, 2)
    assert minutes.signal() == [("T12", 1, 61, 1)]
    assert TableSignals.load(minutes.catalog, "demo.minutes").cursor.held == frozenset()
    minutes.send(2, 3)
    assert minutes.signal(fails) == [("T12", 2, 62, 1)]
    minutes.send(3, 4)
    assert minutes.signal() == [("T12", 2, 63, 1)]


def test_an_empty_window_needs_no_gate(minutes):
    minutes.send(0, 1)
    minutes.signal()
    minutes.send(130, 131)
    assert minutes.signal(lambda _, windows: dict.fromkeys(windows, GateOutcome(passed=True, note="asked"))) == [
        ("T12", 1, 1, 0),
        ("T13", 1, 0, 0),
    ]
    notes = [s.note for s in TableSignals.load(minutes.catalog, "demo.minutes").after(0)]
    assert notes == ["asked", None]


def test_a_signal_that_a_consumer_missed_is_sent_again_with_the_same_revision(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 130)
    minutes.signal()
    noon = Window(NOON, Grain.HOUR)
    resend_signals(minutes.catalog, "demo.minutes", [noon], note="sent again", clock_ms=NOW_MS)
    seen = TableSignals.load(minutes.catalog, "demo.minutes")
    assert [facts(s) for s in seen.after(2)] == [("T12", 1, 60, 0)]
    assert minutes.signal() == []
    with pytest.raises(SpecError, match=r"of demo\.minutes again that were never signalled: .*2013-12-30T14"):
        resend_signals(minutes.catalog, "demo.minutes", [noon, Window.parse("2013-12-30T14")], note="", clock_ms=NOW_MS)
    with pytest.raises(SpecError, match=r"it is never signalled, because signals begin with 2013-12-30T12"):
        resend_signals(minutes.catalog, "demo.minutes", [Window.parse("2013-12-30T11")], note="", clock_ms=NOW_MS)


def test_a_signal_reports_the_dead_letters_since_the_previous_signal(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 30, rejected=2)
    minutes.send(30, 70, rejected=1)
    (found,) = signal_windows(minutes.catalog, minutes.assess(), clock_ms=NOW_MS)
    assert found.dead_letters == 3
    minutes.send(70, 130)
    (found,) = signal_windows(minutes.catalog, minutes.assess(), clock_ms=NOW_MS)
    assert found.dead_letters == 0


def test_a_table_rolled_back_behind_its_stream_signals_nothing_until_that_is_settled(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 70)
    assert len(minutes.signal()) == 1
    before = head_of(minutes.made.tables.main.refresh().metadata).snapshot_id
    minutes.send(70, 130)
    minutes.made.tables.main.refresh().manage_snapshots().rollback_to_snapshot(before).commit()
    assert minutes.signal() == []
    assert (
        "demo.minutes was replaced, or rolled back to before the last commit of stream 'minutes'"
        in minutes.assess().decision.reason
    )
    minutes.read = 70
    minutes.made.reset({0: 70})
    minutes.send(70, 140)
    assert minutes.signal() == [("T13", 1, 60, 0)], "it was never signalled: nothing of it is late"


def test_a_marker_of_an_undeclared_stream_keeps_every_window_open(minutes, tmp_path):
    other = Minutes(tmp_path, name="others")
    other.made.begin()
    minutes.send(0, 10)
    other.send(0, 70)
    seen = minutes.assess()
    assert seen.decision.through_us is None
    assert "the watermark of others cannot be used: no valid file declares the stream" in seen.decision.reason
    (tmp_path / "others.yaml").write_text("name: others\ntable: demo.minutes\n")
    with pytest.raises(SpecError, match=r"others\.yaml"):
        find_streams_of(tmp_path, "demo.minutes")


@pytest.mark.usefixtures("frazil_home")
def test_rows_waiting_on_a_branch_keep_their_window_open_whatever_the_lateness(tmp_path):
    late = Minutes(tmp_path, extra="lateness: 2h\ncommit: {align: watermark}\n", by="hour")
    late.made.begin()
    late.send(0, 10)
    late.signal()
    late.send(10, 130)
    assert [key for key, *_ in late.signal()] == ["T10", "T11"]
    impatient = late.spec.model_copy(update={"lateness": timedelta(0)})
    seen = assess_table(late.catalog, [impatient])
    assert seen is not None
    assert seen.decision.complete == ()
    assert "rows of minutes since 2013-12-30T12:00:00Z wait on a branch" in seen.decision.reason


def test_signals_after_a_given_one_are_found_although_snapshots_were_expired(minutes):
    for hour in range(5):
        minutes.send(60 * hour, 60 * hour + 61)
        minutes.signal()
    assert [s.partition[-3:] for s in TableSignals.load(minutes.catalog, "demo.minutes").after(2)] == ["T15", "T16"]
    signals = minutes.catalog.load_table(SIGNALS_TABLE)
    expire = signals.maintenance.expire_snapshots()
    for snapshot in signals.snapshots()[:-1]:
        expire = expire.by_id(snapshot.snapshot_id)
    expire.commit()
    assert [s.partition[-3:] for s in TableSignals.load(minutes.catalog, "demo.minutes").after(2)] == ["T15", "T16"]


def test_a_cursor_that_was_edited_by_hand_is_refused(minutes):
    minutes.send(0, 70)
    minutes.signal()
    signals = minutes.catalog.load_table(SIGNALS_TABLE)
    with signals.transaction() as change:
        change.set_properties({"frazil.signals.demo.minutes": "{}"})
    with pytest.raises(MarkerUnreadable, match="edited by hand"):
        minutes.assess()


def test_more_late_windows_than_a_summary_carries_are_counted_in_the_files(minutes):
    minutes.send(0, 200 * 60)
    head = head_of(minutes.made.tables.main.refresh().metadata)
    minutes.send(0, 190 * 60)
    table = minutes.made.tables.main.refresh()
    assert head_of(table.metadata).summary.get(WINDOWS_KEY) is None
    cursor = Cursor(Grain.HOUR, NOON + HOUR, NOON + 150 * HOUR, head.sequence_number)
    late = late_rows(table, cursor, column="at", grain=Grain.HOUR)
    assert late == {NOON + h * HOUR: 60 for h in range(1, 150)}


def test_a_second_stream_that_starts_later_reopens_signalled_windows(minutes, tmp_path):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 130)
    assert minutes.signal() == [("T12", 1, 60, 0), ("T13", 1, 60, 0)]
    other = Minutes(tmp_path, name="others")
    other.made.begin()
    other.send(0, 50)
    assert minutes.signal_with(other) == [("T12", 2, 110, 50)]
    other.send(50, 130)
    assert minutes.signal_with(other) == [("T12", 3, 120, 10), ("T13", 2, 120, 60)]
    assert minutes.signal_with(other) == []
    minutes.send(130, 190)
    other.send(130, 190)
    assert minutes.signal_with(other) == [("T14", 1, 120, 0)]


def test_a_forgotten_stream_that_begins_again_reopens_signalled_windows(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 130)
    minutes.signal()
    tables = minutes.made.tables
    forget(tables, state=tables.state)
    assert minutes.signal() == []
    adopt(tables, offsets={("minutes", 0): 0, ("minutes", 1): 0}, source=minutes.made.source)
    minutes.made.begin()
    minutes.read = 0
    minutes.send(0, 61)
    assert minutes.signal() == [("T12", 2, 120, 60), ("T13", 2, 61, 1)]


@pytest.mark.parametrize("counts", [True, False])
def test_rows_read_again_after_a_reset_reopen_only_windows_since_the_first_check(minutes, counts):
    minutes.counts = counts
    minutes.send(-30, 10)
    minutes.signal()
    minutes.send(10, 130)
    minutes.signal()
    minutes.made.reset({0: 0})
    minutes.read = 0
    minutes.send(-30, 70)
    assert minutes.signal() == [("T12", 2, 120, 60), ("T13", 2, 70, 10)]
    assert minutes.signal() == []


@pytest.mark.usefixtures("frazil_home")
def test_rows_that_waited_on_a_branch_reopen_a_signalled_window_when_they_reach_main(tmp_path):
    first = Minutes(tmp_path, by="hour")
    first.made.begin()
    first.send(0, 10)
    first.signal()
    first.send(10, 70)
    assert first.signal() == [("T12", 1, 60, 0)]
    other = Minutes(tmp_path, name="others", extra="commit: {align: watermark}\n", by="hour")
    other.made.begin()
    other.send(0, 30)
    assert first.signal_with(other) == [], "its rows wait on the branch"
    other.send(30, 65)
    assert first.signal_with(other) == [("T12", 2, 120, 60)]
    assert first.signal_with(other) == []


@pytest.mark.usefixtures("frazil_home")
def test_rows_that_another_engine_appends_reopen_their_window_and_a_rewrite_does_not(tmp_path):
    minutes = Minutes(tmp_path, extra="coordinates: false\n")
    minutes.made.begin()
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 130)
    minutes.signal()
    table = minutes.made.tables.main.refresh()
    times = [NOON + 61 * MINUTE, NOON + 200 * MINUTE]
    schema = table.schema().as_arrow()
    table.append(pa.table([pa.array(times).cast(schema.field("at").type)], schema))
    assert minutes.signal() == [("T13", 2, 61, 1)]
    minutes.made.tables.main.refresh().delete("at < '2013-12-30T12:10:00+00:00'")
    assert minutes.signal() == [], "files that were written anew bring nothing"


def test_rows_deleted_by_others_do_not_change_a_signal_until_a_row_is_appended(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 70)
    minutes.signal()
    (before,) = load_newest_signals(minutes.catalog, "demo.minutes", from_us=NOON, to_us=NOON + HOUR)
    minutes.made.tables.main.refresh().delete("at < '2013-12-30T12:10:00+00:00'")
    assert minutes.signal() == []
    (after,) = load_newest_signals(minutes.catalog, "demo.minutes", from_us=NOON, to_us=NOON + HOUR)
    assert after == before
    assert after.snapshot_id != head_of(minutes.made.tables.main.refresh().metadata).snapshot_id
    minutes.send(5, 6)
    assert minutes.signal() == [("T12", 2, 51, 1)]


def test_a_table_state_older_than_the_last_signal_signals_nothing(minutes, monkeypatch):
    """Read an old table, as from a caching catalog. It once led to no signal, and then to the same late rows again."""
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 70)
    old = minutes.made.tables.main.refresh()
    minutes.send(70, 130)
    minutes.send(3, 5)
    assert len(minutes.signal(fails)) == 2
    catalog = minutes.catalog
    load = type(catalog).load_table
    with monkeypatch.context() as patch:
        patch.setattr(
            type(catalog), "load_table", lambda self, name: old if name == "demo.minutes" else load(self, name)
        )
        seen = assess_table(catalog, [minutes.spec])
        assert "an older state of demo.minutes than the one already signalled" in seen.decision.reason
        assert signal_windows(catalog, seen, clock_ms=NOW_MS) == ()
        with pytest.raises(CommitUnavailable, match="older state"):
            release_window(catalog, minutes.spec, Window(NOON, Grain.HOUR), note="", clock_ms=NOW_MS)
    assert minutes.signal() == []


def test_a_recreated_table_reopens_the_windows_that_were_signalled_before(minutes, tmp_path):
    minutes.send(0, 10)
    minutes.signal()
    for minute in range(10, 130, 10):
        minutes.send(minute, minute + 10)
    assert [key for key, *_ in minutes.signal()] == ["T12", "T13"]
    for name in ("demo.minutes", "demo.minutes_dead_letters"):
        location = minutes.catalog.load_table(name).location()
        minutes.catalog.drop_table(name)
        shutil.rmtree(location.removeprefix("file://"))
    again = Minutes(tmp_path)
    again.made.begin()
    again.send(0, 10)
    again.send(10, 130)
    assert again.signal() == [("T12", 2, 60, 60), ("T13", 2, 60, 60)]
    assert again.signal() == []


def test_rows_of_a_window_are_counted_at_the_given_snapshot(minutes):
    minutes.send(0, 90)
    minutes.send(60, 70)
    table = minutes.made.tables.main.refresh()
    windows = [Window(NOON + h * HOUR, Grain.HOUR) for h in range(-1, 3)]
    first = table.metadata.snapshots[-2].snapshot_id
    head = head_of(table.metadata).snapshot_id
    assert list(count_rows(table, windows, column="at", snapshot_id=first).values()) == [0, 60, 30, 0]
    assert list(count_rows(table, windows, column="at", snapshot_id=head).values()) == [0, 60, 40, 0]
    day = Window.containing(NOON, Grain.DAY)
    assert count_rows(table, [day], column="at", snapshot_id=head) == {day: 100}
    table.delete("at < '2013-12-30T12:30:00+00:00'")
    table = minutes.made.tables.main.refresh()
    head = head_of(table.metadata).snapshot_id
    assert list(count_rows(table, windows[1:3], column="at", snapshot_id=head).values()) == [30, 40]


def test_a_stream_without_windows_is_never_checked(minutes):
    spec = minutes.spec.model_copy(update={"complete": "none"})
    assert assess_table(minutes.catalog, [spec]) is None
    nowhere = spec.table.model_copy(update={"identifier": "demo.nowhere"})
    assert assess_table(minutes.catalog, [minutes.spec.model_copy(update={"table": nowhere})]) is None


def test_a_signal_survives_a_round_trip_through_the_table(minutes):
    minutes.send(0, 1)
    minutes.signal()
    minutes.send(60, 61)
    (made,) = signal_windows(minutes.catalog, minutes.assess(), clock_ms=NOW_MS)
    (read,) = load_newest_signals(minutes.catalog, "demo.minutes", from_us=NOON, to_us=NOON + HOUR)
    assert read == dataclasses.replace(made, number=1)


def test_a_summary_has_its_rows_by_window_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(late_rows_module, "MAX_SUMMARY_CHARACTERS", len('{"0":1}'))
    assert windows_summary({0: 1}) == {WINDOWS_KEY: '{"0":1}'}
    assert windows_summary({0: 10}) == {}
