"""Signals on a real catalog: each window once a revision, with the rows that a reader of its snapshot counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from frazil.commit.completion import Gate, Look, look, release, send_again, signal
from frazil.commit.late_rows import MANY, late_since
from frazil.commit.marker import read_marker
from frazil.commit.rules import head_of
from frazil.commit.signal import Signal, State
from frazil.commit.signals import IDENTIFIER, TableSignals, newest_signals
from frazil.commit.window_rows import window_rows
from frazil.dev.made_batches import EventTimes, MadeStream
from frazil.errors import MarkerUnreadable, SpecError
from frazil.partitions.windows import Grain, Window
from frazil.spec.load import load_stream, streams_of
from frazil.table.catalogs import load_catalog
from frazil.table.storage import open_store

NOON = 1_388_404_800_000_000
"""2013-12-30T12:00:00Z."""
MINUTE = 60_000_000
HOUR = 60 * MINUTE
NOW_MS = 2_000_000_000_000


class Minutes:
    """A stream of one record a minute, from noon on, over two partitions; a table by day whose hours complete."""

    def __init__(self, folder: Path, name: str = "minutes", extra: str = "", by: str = "day") -> None:
        path = folder / f"{name}.yaml"
        path.write_text(
            f"name: {name}\nsource: {{topics: [{name}], bootstrap-servers: '127.0.0.1:1'}}\ntable: demo.minutes\n"
            f"schema: {{at: timestamptz not null}}\nevent-time: at\npartition-by: [{by}(at)]\ncomplete: hour\n{extra}"
        )
        self.spec = load_stream(path)
        self.made = MadeStream(self.spec, NOW_MS, partitions=2)
        self.read = 0

    def send(self, first: int, last: int, *, rejected: int = 0) -> None:
        """Commit the records of the minutes `[first, last)`, in both partitions' ranges as one batch."""
        marker = read_marker(self.made.tables.main.refresh().properties, self.spec.name)
        closed = None if marker is None or marker.watermark_us is None else marker.watermark_us // HOUR * HOUR
        times = [NOON + m * MINUTE for m in range(first, last)]
        late: dict[int, int] = {}
        for us in times:
            if closed is not None and us < closed:
                late[us // HOUR * HOUR] = late.get(us // HOUR * HOUR, 0) + 1
        self.made.columns = lambda _: {"at": pa.array(times)}
        begin, self.read = self.read, self.read + len(times) + rejected
        self.made.land(
            {0: (begin, self.read), 1: (0, 0)},
            rejected={0: range(self.read - rejected, self.read)},
            times=EventTimes(dict.fromkeys((0, 1), max(times)), late),
        )

    @property
    def catalog(self) -> Catalog:
        return load_catalog(None)

    def look(self, *others: Minutes) -> Look:
        seen = look(self.catalog, [self.spec, *(o.spec for o in others)])
        assert seen is not None
        return seen

    def signal(self, gates: Any = None) -> list[tuple[str, int, int, int]]:
        """Look and signal: the windows' keys, revisions, rows and late rows."""
        return [facts(s) for s in signal(self.catalog, self.look(), clock_ms=NOW_MS, gates=gates)]

    def stored(self) -> list[tuple[str, int, int, int]]:
        return [facts(s) for s in TableSignals.load(self.catalog, "demo.minutes").after(0)]


def facts(s: Signal) -> tuple[str, int, int, int]:
    return (s.partition[-3:], s.revision, s.rows, s.late_rows)


@pytest.fixture
def minutes(tmp_path: Path, frazil_home: Path) -> Minutes:  # noqa: ARG001
    stream = Minutes(tmp_path)
    stream.made.begin()
    return stream


def fails(seen: Look, windows: Sequence[Window]) -> dict[Window, Gate]:  # noqa: ARG001
    return dict.fromkeys(windows, Gate(passed=False, note="carrier is null in 3 rows"))


def test_each_window_is_signalled_once_with_its_rows(minutes):
    minutes.send(0, 10)
    assert minutes.signal() == []
    minutes.send(10, 130)
    assert minutes.signal() == [("T12", 1, 60, 0), ("T13", 1, 60, 0)]
    assert minutes.signal() == []
    minutes.send(130, 181)
    assert minutes.signal() == [("T14", 1, 60, 0)]
    assert minutes.stored() == [("T12", 1, 60, 0), ("T13", 1, 60, 0), ("T14", 1, 60, 0)]


def test_nothing_is_signalled_of_the_time_before_the_first_look_unless_the_stream_says_so(minutes, tmp_path):
    minutes.send(0, 130)
    assert minutes.signal() == []
    other = Minutes(tmp_path, extra="complete-from: 2013-12-30T10:00:00Z\n")
    assert look(minutes.catalog, [other.spec]).decision.complete == ()  # the first look has decided


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
    first, second = minutes.look(), minutes.look()
    assert len(signal(minutes.catalog, first, clock_ms=NOW_MS)) == 1
    assert signal(minutes.catalog, second, clock_ms=NOW_MS) == ()
    assert len(minutes.stored()) == 1
    data = Path(minutes.catalog.load_table(IDENTIFIER).location().removeprefix("file://")) / "data"
    assert len(list(data.rglob("*.parquet"))) == 1, "what the slower one wrote is gone"


def test_an_append_whose_answer_is_lost_is_made_once(minutes, monkeypatch):
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
    assert minutes.look(other).decision.through_us is None, "a declared stream that has not begun holds all open"
    other.made.begin()
    other.send(0, 30)
    signal(minutes.catalog, minutes.look(other), clock_ms=NOW_MS)
    minutes.send(70, 130)
    seen = minutes.look(other)
    assert seen.decision.complete == ()
    assert "the watermark of others is 2013-12-30T12:29:00Z, held back by others-0" in seen.decision.reason
    other.send(30, 65)
    (found,) = signal(minutes.catalog, minutes.look(other), clock_ms=NOW_MS)
    assert facts(found) == ("T12", 1, 120, 0)


def test_a_gate_holds_a_window_until_it_is_released_and_others_go_on(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 70)
    minutes.signal(fails)
    minutes.send(70, 130)
    minutes.signal()
    seen = TableSignals.load(minutes.catalog, "demo.minutes")
    assert [(s.partition[-3:], s.state) for s in seen.after(0)] == [("T12", State.HELD), ("T13", State.COMPLETE)]
    assert seen.cursor is not None
    assert seen.cursor.held == {NOON}
    noon = Window(NOON, Grain.HOUR)
    minutes.made.tables.main.refresh().delete("at < '2013-12-30T12:10:00+00:00'")
    freed = release(minutes.catalog, minutes.spec, noon, note="released by op: known outage", clock_ms=NOW_MS)
    assert (freed.revision, freed.rows, freed.state, freed.sent) == (1, 50, State.RELEASED, True)
    assert freed.snapshot_id == head_of(minutes.made.tables.main.refresh().metadata).snapshot_id
    (newest, _) = newest_signals(minutes.catalog, "demo.minutes", from_us=NOON, to_us=NOON + 2 * HOUR)
    assert newest.note == "released by op: known outage"
    with pytest.raises(SpecError, match=r"window 2013-12-30T12 of demo\.minutes is not held"):
        release(minutes.catalog, minutes.spec, noon, note="again", clock_ms=NOW_MS)


def test_late_rows_ask_the_gate_again_and_what_nobody_was_told_keeps_its_revision(minutes):
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
    assert minutes.signal(lambda _, windows: dict.fromkeys(windows, Gate(passed=True, note="asked"))) == [
        ("T12", 1, 1, 0),
        ("T13", 1, 0, 0),
    ]
    notes = [s.note for s in TableSignals.load(minutes.catalog, "demo.minutes").after(0)]
    assert notes == ["asked", None]


def test_what_a_consumer_missed_is_sent_again_with_the_same_revision(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 130)
    minutes.signal()
    noon = Window(NOON, Grain.HOUR)
    send_again(minutes.catalog, "demo.minutes", [noon], note="sent again", clock_ms=NOW_MS)
    seen = TableSignals.load(minutes.catalog, "demo.minutes")
    assert [facts(s) for s in seen.after(2)] == [("T12", 1, 60, 0)]
    assert minutes.signal() == []
    with pytest.raises(SpecError, match=r"2013-12-30T14 of demo\.minutes was not signalled yet"):
        send_again(minutes.catalog, "demo.minutes", [noon, Window.parse("2013-12-30T14")], note="", clock_ms=NOW_MS)


def test_dead_letters_since_the_signal_before_are_told(minutes):
    minutes.send(0, 10)
    minutes.signal()
    minutes.send(10, 30, rejected=2)
    minutes.send(30, 70, rejected=1)
    (found,) = signal(minutes.catalog, minutes.look(), clock_ms=NOW_MS)
    assert found.dead_letters == 3
    minutes.send(70, 130)
    (found,) = signal(minutes.catalog, minutes.look(), clock_ms=NOW_MS)
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
    assert "demo.minutes was rolled back behind stream 'minutes'" in minutes.look().decision.reason
    minutes.read = 70
    minutes.made.reset({0: 70})
    minutes.send(70, 140)
    assert minutes.signal() == [("T13", 1, 60, 50)]


def test_a_marker_that_no_sound_file_declares_keeps_every_window_open(minutes, tmp_path):
    other = Minutes(tmp_path, name="others")
    other.made.begin()
    minutes.send(0, 10)
    other.send(0, 70)
    seen = minutes.look()
    assert seen.decision.through_us is None
    assert "others counts for nothing: no sound file declares it" in seen.decision.reason
    (tmp_path / "others.yaml").write_text("name: others\ntable: demo.minutes\n")
    with pytest.raises(SpecError, match=r"others\.yaml"):
        streams_of(tmp_path, "demo.minutes")


@pytest.mark.usefixtures("frazil_home")
def test_rows_that_wait_on_a_branch_keep_their_window_open_whatever_lateness_says(tmp_path):
    late = Minutes(tmp_path, extra="lateness: 2h\ncommit: {align: watermark}\n", by="hour")
    late.made.begin()
    late.send(0, 10)
    late.signal()
    late.send(10, 130)
    assert [key for key, *_ in late.signal()] == ["T10", "T11"]
    impatient = late.spec.model_copy(update={"lateness": timedelta(0)})
    seen = look(late.catalog, [impatient])
    assert seen is not None
    assert seen.decision.complete == ()
    assert "its rows since 2013-12-30T12:00:00Z wait on a branch" in seen.decision.reason


def test_signals_after_one_are_found_when_the_history_was_expired(minutes):
    for hour in range(5):
        minutes.send(60 * hour, 60 * hour + 61)
        minutes.signal()
    assert [s.partition[-3:] for s in TableSignals.load(minutes.catalog, "demo.minutes").after(2)] == ["T15", "T16"]
    signals = minutes.catalog.load_table(IDENTIFIER)
    expire = signals.maintenance.expire_snapshots()
    for snapshot in signals.snapshots()[:-1]:
        expire = expire.by_id(snapshot.snapshot_id)
    expire.commit()
    assert [s.partition[-3:] for s in TableSignals.load(minutes.catalog, "demo.minutes").after(2)] == ["T15", "T16"]


def test_a_cursor_that_was_edited_by_hand_is_refused(minutes):
    minutes.send(0, 70)
    minutes.signal()
    signals = minutes.catalog.load_table(IDENTIFIER)
    with signals.transaction() as change:
        change.set_properties({"frazil.signals.demo.minutes": "{}"})
    with pytest.raises(MarkerUnreadable, match="edited by hand"):
        minutes.look()


def test_more_late_windows_than_a_summary_carries_are_read_from_the_commit_record(minutes):
    minutes.send(0, 200 * 60)
    head = head_of(minutes.made.tables.main.refresh().metadata)
    minutes.send(0, 190 * 60)
    table = minutes.made.tables.main.refresh()
    assert head_of(table.metadata).summary.get("frazil.late") == MANY
    store = open_store(table.location(), table.io.properties)
    late = late_since(table.metadata, store, sequence_number=head.sequence_number)
    assert late == {NOON + h * HOUR: 60 for h in range(190)}


def test_rows_are_counted_at_the_snapshot_whatever_spans_or_was_deleted(minutes):
    minutes.send(0, 90)
    minutes.send(60, 70)
    table = minutes.made.tables.main.refresh()
    windows = [Window(NOON + h * HOUR, Grain.HOUR) for h in range(-1, 3)]
    first = table.metadata.snapshots[-2].snapshot_id
    head = head_of(table.metadata).snapshot_id
    assert list(window_rows(table, windows, column="at", snapshot_id=first).values()) == [0, 60, 30, 0]
    assert list(window_rows(table, windows, column="at", snapshot_id=head).values()) == [0, 60, 40, 0]
    day = Window.of(NOON, Grain.DAY)
    assert window_rows(table, [day], column="at", snapshot_id=head) == {day: 100}
    table.delete("at < '2013-12-30T12:30:00+00:00'")
    table = minutes.made.tables.main.refresh()
    head = head_of(table.metadata).snapshot_id
    assert list(window_rows(table, windows[1:3], column="at", snapshot_id=head).values()) == [30, 40]


def test_a_stream_without_windows_is_never_looked_at(minutes):
    spec = minutes.spec.model_copy(update={"complete": "none"})
    assert look(minutes.catalog, [spec]) is None
    nowhere = spec.table.model_copy(update={"identifier": "demo.nowhere"})
    assert look(minutes.catalog, [minutes.spec.model_copy(update={"table": nowhere})]) is None


def test_a_signal_survives_its_way_through_the_table(minutes):
    minutes.send(0, 1)
    minutes.signal()
    minutes.send(60, 61)
    (made,) = signal(minutes.catalog, minutes.look(), clock_ms=NOW_MS)
    (read,) = newest_signals(minutes.catalog, "demo.minutes", from_us=NOON, to_us=NOON + HOUR)
    assert read == dataclasses.replace(made, number=1)
