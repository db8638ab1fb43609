"""The output and exit code of `frazil audit`, for findings and for checks that were not possible."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from frazil.audit.findings import Audit, Finding, FindingKind, PartitionAudit
from frazil.cli.audit import _print_audit, audit
from frazil.commit.history import Period


def test_a_stream_that_has_committed_nothing_is_not_called_clean(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = PartitionAudit("orders", 0, None, 0, 0, 0, 0, None, 0)
    _print_audit(Audit("orders", partitions=(nothing,), findings=(), batches=0), with_source=False)
    said = capsys.readouterr().out
    assert "Stream orders has committed nothing yet. `frazil status orders` shows why." in said
    assert "not asked" not in said


def test_the_audit_reports_that_gaps_were_not_checked_without_source(capsys: pytest.CaptureFixture[str]) -> None:
    landed = PartitionAudit("orders", 0, 0, 5, 5, 5, 0, None, 0)
    _print_audit(Audit("orders", partitions=(landed,), findings=(), batches=1), with_source=False)
    said = capsys.readouterr().out
    assert "gaps: not checked (--source compares with Kafka)" in said
    assert "Stream orders is clean: 5 rows, each offset once." in said
    _print_audit(Audit("orders", partitions=(landed,), findings=(), batches=1), with_source=False, has_lines=True)
    assert "Stream orders is clean: 5 records, each offset once." in capsys.readouterr().out


def test_repeats_are_counted_so_that_rows_repeats_and_dead_letters_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    landed = PartitionAudit("clicks", 0, 0, 21, 12, 12, 0, None, 1)
    _print_audit(Audit("clicks", (landed,), (), batches=1, repeats=8), with_source=False)
    assert "dropped as repeats: 8 records\n" in capsys.readouterr().out
    _print_audit(Audit("clicks", (landed,), (), batches=1), with_source=False)
    assert "repeats" not in capsys.readouterr().out


def test_an_upsert_that_has_committed_nothing_has_no_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    _print_audit(Audit("orders", partitions=(), findings=(), batches=0, by_key=True), with_source=True)
    assert capsys.readouterr().out == ("Stream orders has committed nothing yet. `frazil status orders` shows why.\n")


def test_an_incompletely_compared_upsert_is_not_reported_as_clean(capsys: pytest.CaptureFixture[str]) -> None:
    landed = PartitionAudit("orders", 0, 0, 5, 5, 5, 0, None, 0)
    note = Finding(FindingKind.NOT_COMPARED, 5, "5 offsets are yet to be read again", "orders")
    found = Audit("orders", partitions=(landed,), findings=(note,), batches=1, by_key=True)
    assert (found.clean, found.complete, found.errors) == (False, False, ())
    _print_audit(found, with_source=True)
    said = capsys.readouterr().out
    reason = "5 offsets are yet to be read again"
    assert f"Stream orders: no fault found, but not everything was compared: {reason}." in said
    assert said.count(reason) == 1
    assert "clean" not in said


def test_the_same_note_of_several_partitions_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    landed = PartitionAudit("orders", 0, 0, 5, 5, 5, 0, None, 0)
    note = "some offsets before 2026-01-23 were repeated"
    notes = tuple(Finding(FindingKind.NOT_COMPARED, n, note, f"orders-{n}") for n in (1, 2, 3))
    _print_audit(Audit("orders", (landed,), notes, batches=1), with_source=False)
    said = capsys.readouterr().out
    assert said.count(note) == 1
    assert f"not everything was compared: orders-1, orders-2, orders-3: {note}." in said


def test_a_note_with_a_count_is_printed_for_each_partition(capsys: pytest.CaptureFixture[str]) -> None:
    landed = PartitionAudit("orders", 0, 0, 5, 5, 5, 0, None, 0)
    notes = tuple(Finding(FindingKind.UNCHECKED, 5, "5 rows were adopted", f"orders-{n}") for n in (0, 1))
    _print_audit(Audit("orders", (landed,), notes, batches=1), with_source=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert lines == ["note  orders-0: 5 rows were adopted", "note  orders-1: 5 rows were adopted"]


def test_faults_are_printed_before_notes(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = (FindingKind.SKIPPED, FindingKind.MISSING, FindingKind.CHANGED, FindingKind.DUPLICATES)
    found = tuple(Finding(kind, 1, str(kind), "orders-0") for kind in kinds)
    _print_audit(Audit("orders", (), found, batches=1), with_source=True)
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert [line.split()[0] for line in lines] == ["OFF", "OFF", "note", "note"]


def test_an_upsert_with_offsets_committed_twice_is_compared_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    landed = PartitionAudit("orders", 0, 0, 5, 9, 9, 0, None, 0)
    note = Finding(FindingKind.READ_AGAIN, 4, "4 offsets were committed more than once", "orders-0")
    _print_audit(Audit("orders", partitions=(landed,), findings=(note,), batches=2, by_key=True), with_source=True)
    said = capsys.readouterr().out
    assert "note  orders-0: 4 offsets were committed more than once" in said
    assert "is clean: 9 changes, and each key matches its newest change in Kafka." in said


@pytest.mark.parametrize(("kind", "clean", "exit_code"), [
    (FindingKind.NOT_COMPARED, False, 3),
    (FindingKind.UNCHECKED, True, 0),
    (FindingKind.MISSING, False, 1),
])  # fmt: skip
def test_the_exit_code_of_an_audit_distinguishes_clean_wrong_and_not_compared(
    kind: FindingKind, clean: bool, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = PartitionAudit("orders", 0, 0, 5, 5, 5, 0, None, 0)
    found = Audit("orders", (landed,), (), batches=1).with_findings([Finding(kind, 1, "as it is", "orders")])
    monkeypatch.setattr("frazil.cli.audit.find_stream", lambda *_: None)
    monkeypatch.setattr("frazil.cli.audit.audit_declared", lambda *_, **__: found)
    ran = CliRunner().invoke(audit, ["orders", "--json"])
    said = json.loads(ran.stdout)
    assert (ran.exit_code, said["clean"]) == (exit_code, clean)
    assert said["complete"] == (kind is not FindingKind.NOT_COMPARED)


def test_a_partly_compared_audit_period_and_its_rows_of_a_former_topic_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    landed = PartitionAudit("orders", 0, 0, 48, 246, 246, 0, None, 0, of_former_topics=198)
    note = Finding(FindingKind.NOT_COMPARED, 5, "5 rows were not compared", "orders")
    hour = Period(1_800_000_000_000, 1_800_003_600_000)
    _print_audit(Audit("orders", (landed,), (note,), batches=1, window=hour), with_source=True)
    said = capsys.readouterr().out
    assert "rows of former topic" in said.splitlines()[0]
    assert said.splitlines()[1].split()[-1] == "198"
    assert "to 2027-01-15 09:00:00Z: no fault found, but not everything was compared: 5 rows were not compared." in said


def test_committed_offsets_are_shown_with_the_last_one(capsys: pytest.CaptureFixture[str]) -> None:
    counts: dict[str, Any] = {"rows": 0, "distinct": 0, "duplicates": 0, "gaps": None, "dead_letters": 0}
    spans = {0: (0, 1660), 1: (7, 8), 2: (5, 5), 3: (None, 0)}
    partitions = tuple(PartitionAudit("orders", n, *span, **counts) for n, span in spans.items())
    expected = {"orders-0": "0 to 1,659", "orders-1": "7", "orders-2": "none", "orders-3": "none"}
    for by_key in (False, True):
        shown = partitions[:3] if by_key else partitions
        _print_audit(Audit("orders", shown, findings=(), batches=1, by_key=by_key), with_source=True)
        lines = (re.split(r"  +", line) for line in capsys.readouterr().out.splitlines())
        cells = {words[0]: words[1] for words in lines if words[0].startswith("orders-")}
        assert cells == {f"{p.topic}-{p.partition}": expected[f"{p.topic}-{p.partition}"] for p in shown}
