"""`frazil partitions`: complete windows, the causes of delay, and windows that can be sent again or released."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from frazil.cli.main import frazil
from frazil.errors import FrazilError, SpecError
from frazil.operations.fetch import fetch_windows
from frazil.signals.completion import MAX_SIGNAL_DELAY_US, GateOutcome, assess_table, signal_windows
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from tests.made_batches import EventTimes, MadeStream

STREAM = """
name: made
source: {topics: [made], bootstrap-servers: "127.0.0.1:1"}
table: demo.made
schema: {at: timestamptz}
event-time: at
complete: hour
complete-from: 2013-12-30T00:00:00Z
"""
DAY = 1_388_361_600_000_000
HOUR = 3_600_000_000


@pytest.fixture
def made(frazil_home: Path, tmp_path: Path) -> MadeStream:  # noqa: ARG001
    """One record in each hour of 30 December, and one at the next midnight. A gate holds the second hour."""
    (tmp_path / "made.yaml").write_text(STREAM)
    stream = MadeStream(load_stream(tmp_path / "made.yaml"), 2_000_000_000_000, partitions=1)
    stream.columns = lambda rows: {"at": pa.array([DAY + n * HOUR for n in range(rows)])}
    stream.land({0: (0, 25)}, times=EventTimes({0: DAY + 24 * HOUR}))
    return stream


def signal_all(made: MadeStream, held: str | None = None) -> None:
    seen = assess_table(load_catalog(None), [made.spec])
    assert seen is not None
    gate_results = {w: GateOutcome(passed=w.key != held, note="a rule is broken") for w in seen.decision.complete}
    signal_windows(load_catalog(None), seen, clock_ms=2_000_000_000_000, gates=lambda *_: gate_results)


def call(tmp_path: Path, *arguments: str) -> Any:
    done = CliRunner().invoke(frazil, ["partitions", *arguments, "--streams", str(tmp_path)])
    if isinstance(done.exception, FrazilError):
        raise done.exception
    return done


def found(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    return dict(json.loads(call(tmp_path, "demo.made", "--json", *arguments).stdout))


def test_frazil_partitions_reports_that_no_window_is_signalled_before_the_first_check(
    made: MadeStream,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    said = call(tmp_path, "demo.made").stdout
    assert "signalled  nothing yet" in said
    assert found(tmp_path)["delay"] == (
        "24 complete windows have no signal yet, the first 2013-12-30T00: "
        "the DAG frazil_partitions_demo.made has not run"
    )
    assert "delay      24 complete windows have no signal yet, the first 2013-12-30T00" in said


def test_before_the_first_check_no_first_window_is_set_unless_it_is_declared(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made.yaml").write_text(STREAM.replace("complete-from: 2013-12-30T00:00:00Z\n", ""))
    committed_ms = made.tables.main.current().metadata.snapshots[-1].timestamp_ms
    monkeypatch.setattr("frazil.clock.now_ms", lambda: committed_ms + MAX_SIGNAL_DELAY_US // 1000)
    assert found(tmp_path)["delay"] == "", "the DAG checks every minute"
    monkeypatch.setattr("frazil.clock.now_ms", lambda: committed_ms + MAX_SIGNAL_DELAY_US // 1000 + 1)
    assert found(tmp_path)["delay"] == (
        "the DAG frazil_partitions_demo.made has not run, so the first window is not set: its first run begins with "
        "the window that is then open. To signal earlier windows, declare complete-from"
    )


def test_health_reports_windows_that_no_check_signals(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest_ms = made.tables.main.current().metadata.snapshots[0].timestamp_ms

    def beyond_after(late: timedelta) -> list[str]:
        monkeypatch.setattr("frazil.clock.now_ms", lambda: oldest_ms + late // timedelta(milliseconds=1))
        done = CliRunner().invoke(frazil, ["health", "demo.made", "--json", "--streams", str(tmp_path)])
        found = json.loads(done.stdout)["tables"][0]["beyond"]
        return [one["sentence"] for one in found if one["rule"] == "late-window"]

    assert beyond_after(timedelta(hours=2)) == []
    (late,) = beyond_after(timedelta(hours=2, seconds=1))
    assert late.startswith("demo.made: 2013-12-30T00 has been due for 2 h 0 min, but is not signalled")
    assert "it is complete, and the next run of the table's partition DAG signals it" in late
    signal_all(made)
    assert beyond_after(timedelta(hours=2, seconds=1)) == []


def test_health_reports_a_window_that_is_never_signalled_while_the_writer_expires_snapshots(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer with a short commit interval keeps the snapshots of a few minutes."""
    made.now_ms += 3 * HOUR // 1_000
    made.land({0: (25, 26)}, times=EventTimes({0: DAY + 24 * HOUR}))
    table = made.tables.main.refresh()
    newest = table.metadata.current_snapshot_id
    table.maintenance.expire_snapshots().by_ids(
        [snapshot.snapshot_id for snapshot in table.metadata.snapshots if snapshot.snapshot_id != newest]
    ).commit()
    monkeypatch.setattr("frazil.clock.now_ms", lambda: made.now_ms)
    done = CliRunner().invoke(frazil, ["health", "demo.made", "--json", "--streams", str(tmp_path)])
    (late,) = (one for one in json.loads(done.stdout)["tables"][0]["beyond"] if one["rule"] == "late-window")
    assert "demo.made: 2013-12-30T00 has been due for 3 h 0 min, but is not signalled" in late["sentence"]


def test_a_dag_that_is_behind_is_reported_with_the_sentence_of_the_operations_page(
    made: MadeStream, tmp_path: Path
) -> None:
    signal_all(made)
    due_us = DAY + 25 * HOUR + MAX_SIGNAL_DELAY_US
    made.land({0: (25, 26)}, times=EventTimes({0: due_us - 1}))
    assert "is behind" not in call(tmp_path, "demo.made").stdout, "the DAG checks every minute"
    made.land({0: (26, 27)}, times=EventTimes({0: due_us}))
    delay = (
        "1 complete window has no signal yet, the first 2013-12-31T00: the DAG frazil_partitions_demo.made is behind"
    )
    assert f"delay      {delay}" in call(tmp_path, "demo.made").stdout
    windows = fetch_windows([made.spec])
    assert windows is not None
    assert found(tmp_path)["delay"] == windows.unsignalled == delay


def test_frazil_partitions_shows_complete_windows_and_the_reason_why_the_next_one_waits(
    made: MadeStream, tmp_path: Path
) -> None:
    signal_all(made)
    said = found(tmp_path)
    assert (said["signalled-from"], said["signalled-to"]) == ("2013-12-30T00:00:00Z", "2013-12-31T00:00:00Z")
    assert (len(said["signals"]), said["signals"][3]["rows"], said["held"]) == (24, 1, [])
    assert said["waits-for"] == (
        "2013-12-31T00 is not complete: events from 2013-12-31T01:00:00Z or later must arrive; the newest event "
        "of stream made in partition made-0 is from 2013-12-31T00:00:00Z; events dated in the future do not count"
    )
    assert said["streams"] == [
        {"stream": "made", "watermark": "2013-12-31T00:00:00Z", "lateness": "0s", "held-back-by": "made-0"}
    ]
    shown = call(tmp_path, "demo.made", "--last", "2").stdout
    assert "2013-12-30T23" in shown
    assert "2013-12-30T21" not in shown


def test_a_day_is_replayed_hour_by_hour(made: MadeStream, tmp_path: Path) -> None:
    signal_all(made)
    said = found(tmp_path, "--send-again", "2013-12-30")
    assert [s["number"] for s in said["signals"]] == list(range(25, 49))
    assert {(s["revision"], s["note"].split(" by ")[0]) for s in said["signals"]} == {(1, "sent again")}
    with pytest.raises(SpecError, match=r"of demo.made again that were never signalled: 2013-12-31T00, "):
        call(tmp_path, "demo.made", "--send-again", "2013-12-31")
    refused = call(tmp_path, "demo.made", "--send-again", "2013-12-30T05")
    assert (refused.exit_code, "give 2013-12-30" in refused.output) == (2, True)


def test_a_held_window_is_shown_and_released_with_a_reason(made: MadeStream, tmp_path: Path) -> None:
    signal_all(made, held="2013-12-30T01")
    assert found(tmp_path, "--last", "1")["held"] == ["2013-12-30T01"]
    assert "a rule is broken" in call(tmp_path, "demo.made").stdout
    assert call(tmp_path, "demo.made", "--release", "2013-12-30T01").exit_code == 2
    said = found(tmp_path, "--release", "2013-12-30T01", "--reason", "known outage")
    assert said["held"] == []
    assert said["signals"][1]["state"] == "released"
    assert said["signals"][1]["note"].endswith("frazil partitions: known outage")


def test_a_table_that_no_stream_feeds_is_reported_with_the_tables_that_streams_feed(
    tmp_path: Path,
    made: MadeStream,  # noqa: ARG001
) -> None:
    with pytest.raises(SpecError, match=r"writes to the table 'demo.flight'; known tables: demo.made"):
        call(tmp_path, "demo.flight")
    assert call(tmp_path, "demo.made", "--send-again", "2013").exit_code == 2


def test_partitions_of_a_stream_name_shows_its_table_with_a_note(made: MadeStream, tmp_path: Path) -> None:
    done = call(tmp_path, made.spec.name, "--json")
    assert done.stderr == "made is a stream; showing its table demo.made\n"
    assert json.loads(done.stdout) == found(tmp_path)
    with pytest.raises(SpecError, match=r"no stream in .* writes to the table 'mad'"):
        call(tmp_path, "mad")
