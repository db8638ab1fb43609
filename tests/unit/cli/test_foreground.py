"""A writer's output in the terminal."""

from __future__ import annotations

import io
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from frazil.cli.foreground import (
    MAX_BUFFERED_LINES,
    RunTotals,
    Terminal,
    WaitReporter,
    WriterPipe,
    live_text,
    live_text_of_many,
)
from frazil.cli.run import StreamOutput
from frazil.commit.marker import BatchKey, Marker
from frazil.events import BatchCommitted, Event, OutageReported
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.offsets.spans import SourceIdentity
from frazil.spec.model import StreamSpec

SPEC = StreamSpec.model_validate(
    {
        "name": "rides",
        "source": {"bootstrap-servers": "nowhere:9092", "topics": "rides"},
        "table": "city.rides",
        "schema": {"n": "timestamptz"},
        "event-time": "n",
    }
)
SEE = "see the column `error` of table city.rides_dead_letters"


def landed(records: int, rejected: int = 0, files: int = 1) -> BatchCommitted:
    key = BatchKey(3, 7)
    marker = Marker("rides", key, None, {}, SourceIdentity("c", {}), {})
    return BatchCommitted(key, marker, records, rejected, files, stage_s=1.0, commit_s=0.25)


@pytest.mark.parametrize(
    ("batch", "line"),
    [
        (landed(2, 1, files=2), "batch 3-7: 2 rows, 1 dead letter in 2 files, 1.2 s"),
        (landed(1_234_567), "batch 3-7: 1,234,567 rows in 1 file, 1.2 s"),
        (landed(0, files=0), "batch 3-7: no new records, only the watermark was updated"),
    ],
)
def test_a_batch_is_logged_as_one_line(batch: BatchCommitted, line: str):
    assert RunTotals(SPEC).add(batch) == line


@pytest.mark.parametrize(
    ("batches", "stopped", "line"),
    [
        ([], False, "caught up: no new records for city.rides"),
        ([landed(0)], True, "stopped: no records were committed to city.rides"),
        ([landed(1), landed(1)], False, "caught up: 2 rows added to city.rides"),
        (
            [landed(2, 1)],
            False,
            f"caught up: 2 rows added to city.rides, 1 dead letter ({SEE})",
        ),
    ],
)
def test_the_last_line_shows_the_rows_that_the_run_landed(batches: list[BatchCommitted], stopped: bool, line: str):
    totals = RunTotals(SPEC)
    for batch in batches:
        totals.add(batch)
    assert totals.last_line(is_stopped=stopped) == line


def test_a_stopped_run_reports_the_records_that_wait_in_kafka():
    totals = RunTotals(SPEC)
    assert totals.last_line(is_stopped=True, lag=0) == "stopped: no new records for city.rides"
    waits = "stopped: no records were committed to city.rides; 50 records wait in Kafka"
    assert totals.last_line(is_stopped=True, lag=50) == waits
    totals.add(landed(2))
    assert totals.last_line(is_stopped=True, lag=1) == "stopped: 2 rows added to city.rides; 1 record waits in Kafka"
    assert totals.document(is_stopped=True, lag=1)["lag"] == 1


def test_rows_that_wait_for_routed_tables_are_reported_separately():
    route = {"by": "header", "name": "kind", "tables": {"a": "city.a"}}
    totals = RunTotals(
        StreamSpec.model_validate({**SPEC.model_dump(by_alias=True, exclude_unset=True), "route": route})
    )
    totals.add(landed(5))
    assert totals.last_line(is_stopped=True) == "stopped: 5 rows added to the tables of the route of rides"
    assert totals.last_line(is_stopped=True, waiting=3) == (
        "stopped: 5 rows for the tables of the route of rides; 3 rows wait for their tables: "
        "`frazil route rides` shows why"
    )
    assert totals.document(is_stopped=True, waiting=3)["waiting"] == 3
    totals.waited = 67
    late = "67 rows that had waited reached their tables"
    assert totals.last_line(is_stopped=False) == f"caught up: 5 rows added to the tables of the route of rides; {late}"
    assert totals.document(is_stopped=False)["waited"] == 67


def test_a_wait_is_shown_after_half_a_minute_then_at_a_new_reason_and_else_hourly():
    now_s = 0.0
    waits, shown = WaitReporter(clock=lambda: now_s), list[tuple[float, str]]()
    reasons = {at: f"city.a is missing {at:.0f} rows" for at in (0.0, 29.9, 30.0, 60.0, 3600.0, 3630.0, 3660.0)}
    reasons |= dict.fromkeys((3670.0, 3690.0, 3720.0), "city.a does not exist")
    for now_s, reason in reasons.items():
        if line := waits.report(reason):
            shown.append((now_s, line))
    assert shown == [
        (30.0, "waiting: city.a is missing 30 rows"),
        (3630.0, "waiting: city.a is missing 3630 rows"),
        (3670.0, "waiting: city.a does not exist"),
    ]


def test_a_wait_after_a_batch_is_new_and_a_wait_that_batches_do_not_end_continues():
    now_s = 0.0
    waits = WaitReporter(clock=lambda: now_s)

    def batch() -> None:
        waits.note_batch_start()
        waits.note_commit()

    batch()
    assert waits.report("city.a is missing 3 rows") is None
    now_s = 20.0
    batch()
    assert waits.report("city.a is missing 3 rows") is None
    now_s = 30.0
    batch()
    assert waits.report("city.a is missing 3 rows"), "as is said after each batch"
    batch()
    now_s = 7200.0
    waits.note_batch_start()
    assert waits.report("Kafka is away") is None, "another wait"
    now_s = 7230.0
    waits.note_batch_start()  # each try begins the batch again
    assert waits.report("Kafka is away") == "waiting: Kafka is away"


def test_a_wait_of_an_applications_stream_is_shown_with_its_name(monkeypatch: pytest.MonkeyPatch):
    pipe, seconds = Mock(), iter((0.0, 30.0))
    monkeypatch.setattr("frazil.cli.run.WaitReporter", lambda: WaitReporter(clock=lambda: next(seconds)))
    output = StreamOutput(SPEC, pipe, "rides: ")
    for _ in range(2):
        output.show(Event("rides", 0, OutageReported("Kafka is away", 22)))
    output.show(Event("rides", 0, landed(2)))
    assert [call.args[0] for call in pipe.say.call_args_list] == [
        "rides: waiting: Kafka is away",
        "rides: batch 3-7: 2 rows in 1 file, 1.2 s",
    ]


def test_the_live_line_of_an_application_counts_its_streams_by_phase():
    waiting, staging = heartbeat(Phase.WAITING), heartbeat(Phase.STAGING)
    assert live_text_of_many([waiting, None, staging, waiting]) == "4 streams: 1 staging, 1 starting, 2 waiting"


def test_printed_lines_count_changes_for_merged_batches():
    spec = SPEC.model_copy(update={"mode": "upsert"})
    totals = RunTotals(spec)
    assert totals.add(landed(2, 1, files=2)) == "batch 3-7: 2 changes merged, 1 dead letter, 1.2 s"
    assert totals.last_line(is_stopped=False) == f"caught up: 2 changes merged into city.rides, 1 dead letter ({SEE})"


def test_a_stream_whose_records_become_several_rows_reports_records():
    declared = SPEC.model_dump(by_alias=True, exclude_unset=True)
    declared["source"]["format"] = {"type": "json", "lines": True}
    totals = RunTotals(StreamSpec.model_validate(declared))
    assert totals.add(landed(2)) == "batch 3-7: 2 records in 1 file, 1.2 s"
    assert totals.last_line(is_stopped=False) == "caught up: 2 records added to city.rides"


def test_a_stream_that_drops_repeats_reports_records_and_rows():
    dedupe = {"key": ["n"], "within": "1h"}
    declared = {**SPEC.model_dump(by_alias=True, exclude_unset=True), "dedupe": dedupe}
    declared |= {"schema": {"n": "timestamptz not null"}}
    totals = RunTotals(StreamSpec.model_validate(declared))
    said = totals.add(replace(landed(40), changes={"repeated": 30}))
    assert said == "batch 3-7: 10 rows, 30 repeats dropped in 1 file, 1.2 s"
    totals.add(landed(2))
    assert totals.last_line(is_stopped=False) == "caught up: 12 rows added to city.rides, 30 repeats dropped"
    assert totals.document(is_stopped=False) == {"ended": "caught-up", "records": 42, "rejected": 0, "repeated": 30}


def heartbeat(phase: Phase, **changes: Any) -> Heartbeat:
    values: dict[str, Any] = {
        "stream": "rides", "pid": 7, "spec_fingerprint": "f", "phase": phase, "written_at_ms": 0, "advanced_at_ms": 0,
    }  # fmt: skip
    return Heartbeat(**{**values, **changes})


@pytest.mark.parametrize("phase", Phase)
def test_the_live_line_describes_every_phase(phase: Phase):
    assert live_text(heartbeat(phase), now_ms=4_000).endswith(" (4.0 s)")


def test_the_live_line_shows_the_current_wait_or_the_records_read():
    assert live_text(None, now_ms=0) == "starting"
    assert live_text(heartbeat(Phase.WAITING, lag=0), now_ms=12_000) == "waiting for records (12 s)"
    assert live_text(heartbeat(Phase.WAITING, lag=1200), now_ms=0) == "1,200 records wait for their batch (0.0 s)"
    staging = heartbeat(Phase.STAGING, epoch=3, batch=7, batch_records=50_000)
    assert live_text(staging, now_ms=0) == "batch 3-7: 50,000 records read (0.0 s)"
    merging = heartbeat(Phase.COMMITTING, epoch=3, batch=7, merged_rows=900)
    assert live_text(merging, now_ms=0) == "batch 3-7: merging, 900 rows read (0.0 s)"


def test_lines_of_the_writer_arrive_unbroken_and_its_warnings_separately(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    read_end, write_end = os.pipe()
    voice = WriterPipe(write_end)
    voice.say("ünïcode\nand a line break")
    voice.handle(logging.makeLogRecord({"levelno": logging.WARNING, "msg": "%d brokers are silent", "args": (2,)}))
    os.close(write_end)
    terminal = Terminal(tmp_path)
    terminal.say("a signal came")
    terminal.listen(read_end, writer=1)
    terminal.close()
    os.close(read_end)
    out, err = capsys.readouterr()
    assert (out, err) == ("a signal came\nünïcode\nand a line break\n", "warning: 2 brokers are silent\n")
    assert not terminal.complained, "a warning does not say why a writer ended"


def test_the_reason_why_the_writer_ended_is_recognised_as_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    read_end, write_end = os.pipe()
    WriterPipe(write_end).print_error("TopicMissing: no topic t")
    os.close(write_end)
    terminal = Terminal(tmp_path)
    terminal.listen(read_end, writer=1)
    terminal.close()
    os.close(read_end)
    assert terminal.complained
    assert capsys.readouterr().err == "TopicMissing: no topic t\n"


def test_a_live_status_line_appears_only_in_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Terminal(tmp_path)._show_live(writer=1)
    assert capsys.readouterr().out == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        Terminal(tmp_path)._show_live(writer=1)
    assert capsys.readouterr().out == "\r\x1b[Kstarting"


def test_a_writer_continues_after_its_output_listener_is_gone():
    read_end, write_end = os.pipe()
    os.close(read_end)
    WriterPipe(write_end).say("nobody hears it")
    os.close(write_end)


def test_a_character_that_the_terminal_cannot_show_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    terminal = Terminal(tmp_path)
    read_end, write_end = os.pipe()
    voice = WriterPipe(write_end)
    for line in ("one", "Flüge", "three"):
        voice.say(line)
    os.close(write_end)
    terminal.listen(read_end, writer=os.getpid())
    os.close(read_end)
    terminal.close()
    assert shown.getvalue() == b"one\nFl\\xfcge\nthree\n"


def test_lines_of_all_kinds_are_bounded_and_the_reason_of_an_end_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    terminal = Terminal(tmp_path)
    for _ in range(MAX_BUFFERED_LINES + 5):
        terminal.warn("careful")
    for _ in range(2 * MAX_BUFFERED_LINES):
        terminal.print_error("why it ended")
    read_end, write_end = os.pipe()
    os.close(write_end)
    terminal.listen(read_end, writer=os.getpid())
    os.close(read_end)
    terminal.close()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines.count("careful") == MAX_BUFFERED_LINES
    assert 0 < lines.count("why it ended") < MAX_BUFFERED_LINES
    assert out.startswith("... 5 lines not shown")
