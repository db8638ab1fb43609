"""What `frazil audit` says of a stream that has committed nothing."""

from __future__ import annotations

import pytest

from frazil.audit.compare import Finding, FindingKind
from frazil.audit.run import Audit, PartitionAudit
from frazil.cli.audit import _show


def test_a_stream_that_has_committed_nothing_is_not_called_clean(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = PartitionAudit("orders", 0, None, 0, 0, 0, 0, None, 0)
    _show(Audit("orders", clean=True, partitions=(nothing,), findings=(), batches=0), with_source=False)
    said = capsys.readouterr().out
    assert "Stream orders has committed nothing yet. `frazil status orders` says what waits." in said
    assert "not asked" not in said


def test_gaps_that_kafka_was_not_asked_for_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    landed = PartitionAudit("orders", 0, 0, 5, 5, 5, 0, None, 0)
    _show(Audit("orders", clean=True, partitions=(landed,), findings=(), batches=1), with_source=False)
    said = capsys.readouterr().out
    assert "gaps: not asked (--source compares with Kafka)" in said
    assert "Stream orders is clean: 5 rows, each offset once." in said


def test_an_upsert_that_has_committed_nothing_has_no_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    _show(Audit("orders", clean=True, partitions=(), findings=(), batches=0, by_key=True), with_source=True)
    assert capsys.readouterr().out == (
        "Stream orders has committed nothing yet. `frazil status orders` says what waits.\n"
    )


def test_an_upsert_of_which_not_all_was_compared_is_not_called_clean(capsys: pytest.CaptureFixture[str]) -> None:
    landed = PartitionAudit("orders", 0, 0, 5, 5, 5, 0, None, 0)
    note = Finding(FindingKind.UNCHECKED, 5, "5 offsets are yet to be read again", "orders")
    _show(Audit("orders", clean=True, partitions=(landed,), findings=(note,), batches=1, by_key=True), with_source=True)
    said = capsys.readouterr().out
    assert "Stream orders: nothing is off in what was compared of 5 committed changes; see the notes." in said
    assert "clean" not in said
