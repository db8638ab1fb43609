"""The end of a run of Iceberg's actions: its report, and whether it needs attention."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from frazil.errors import FrazilError
from frazil.maintenance.compaction import CompactionPlan, Rewrite
from frazil.maintenance.due import Action, ManifestPlan
from frazil.maintenance.health import PartitionFiles
from frazil.maintenance.outcomes import Ending
from frazil.maintenance.plans import MaintenancePlanner
from frazil.maintenance.run import growth_note, maintain, rewrite_ending
from frazil.maintenance.spark_actions import LostRace, RewriteResult, SparkFailed, SparkTable
from frazil.maintenance.tables import find_maintained
from frazil.table.catalogs import load_catalog
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import land


@pytest.mark.parametrize(
    ("done", "ending", "why"),
    [
        (RewriteResult(removed=3), Ending.DONE, "the files are gone"),
        (RewriteResult(removed=3, lost=("x",)), Ending.DONE, "another commit won: x"),
        (RewriteResult(lost=("x", "x")), Ending.GAVE_UP, "another commit won: x"),
        (RewriteResult(lost=("x",), failed=2), Ending.FAILED, "2 failed"),
        (RewriteResult(), Ending.FAILED, "does not find the files"),
        (RewriteResult(removed=3, errors=("no memory",)), Ending.FAILED, "no memory"),
    ],
)
def test_a_rewrite_is_given_up_only_if_another_commit_won(done: RewriteResult, ending: Ending, why: str) -> None:
    found, said = rewrite_ending(done)
    assert found is ending
    assert why in said


@pytest.mark.parametrize(
    ("before", "after", "pages", "said"),
    [
        (0, 9, "v1", ""),
        (10, 19, "v1", ""),
        (10, 80, "v1", "; they are now 8 times as large, in Parquet's older encodings: "),
        (10, 20, "v2", "; they are now 2 times as large"),
    ],
)
def test_a_compaction_that_adds_many_bytes_is_reported(before: int, after: int, pages: str, said: str) -> None:
    found = growth_note(before, after, {"write.parquet.page-version": pages})
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_a_failed_part_of_a_compaction_does_not_lose_the_numbers_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = iter(
        [RewriteResult(removed=4, added=1), SparkFailed("no memory"), LostRace("mine"), RewriteResult(removed=2)]
    )

    def rewrite(*_: object, **__: object) -> RewriteResult:
        part = next(parts)
        if isinstance(part, Exception):
            raise part
        return part

    monkeypatch.setattr(SparkTable, "_rewrite", rewrite)
    table = SparkTable(spark=None, table=_TABLE, java=None)  # type: ignore[arg-type]
    assert table.rewrite([_InPart()] * 4, sort=False) == RewriteResult(6, 1, lost=("mine",), errors=("no memory",))  # type: ignore[list-item]


def test_a_rewrite_reports_data_files_and_the_delete_files_that_it_removed(
    made: MadeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(made, 1)
    partition = PartitionFiles(0, (), "", 2, 10, 0, 0, 2, None)
    due = CompactionPlan((Rewrite(partition, 2, 10, 2, "half of the rows are deleted"),), (), "a rewrite")
    monkeypatch.setattr(MaintenancePlanner, "compaction", lambda _: (made.tables.main.refresh(), due))

    def rewrite(*_: object, **__: object) -> RewriteResult:
        table, said = made.tables.main.refresh(), {"frazil.operation": "compaction", "removed-delete-files": "2"}
        table.append(table.schema().as_arrow().empty_table(), snapshot_properties=said)
        return RewriteResult(removed=2, added=2, bytes=10)

    monkeypatch.setattr(SparkTable, "load", lambda *_: SimpleNamespace(rewrite=rewrite))
    found = find_maintained([made.spec], "demo.made")
    (outcome,) = maintain(lambda: None, load_catalog(None), found, actions=[Action.COMPACTION], now_ms=made.now_ms)  # type: ignore[arg-type, return-value]
    assert "a rewrite: 2 data files became 2, and 2 delete files were removed, in " in outcome.sentence


@pytest.mark.parametrize(("counts", "ending"), [((8, 1), Ending.DONE), ((0, 0), Ending.SKIPPED)])
def test_a_manifest_rewrite_without_any_rewritten_manifest_reports_nothing_done(
    made: MadeStream, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int], ending: Ending
) -> None:
    land(made, 1)
    plan = ManifestPlan((0,), "8 manifests become about 1")
    monkeypatch.setattr(MaintenancePlanner, "manifests", lambda _: (made.tables.main.refresh(), plan))
    monkeypatch.setattr(SparkTable, "load", lambda *_: SimpleNamespace(rewrite_manifests=lambda _: counts))
    found = find_maintained([made.spec], "demo.made")
    (outcome,) = maintain(lambda: None, load_catalog(None), found, actions=[Action.MANIFESTS], now_ms=made.now_ms)  # type: ignore[arg-type, return-value]
    assert outcome.ending is ending
    assert ("8 became 1" if counts[0] else "another program rewrote them first") in outcome.sentence
    assert "0 became" not in outcome.sentence


def no_session() -> Any:
    pytest.fail("a JVM was started")


class _InPart:
    kind, bytes, busy = None, 1, False


_TABLE = SimpleNamespace(metadata=SimpleNamespace(properties={}))


def test_a_refused_expiry_has_its_own_outcome_that_fails_its_task(made: MadeStream) -> None:
    land(made, 1)
    with made.tables.main.refresh().transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    found, now_ms = find_maintained([made.spec], "demo.made"), time.time_ns() // 1_000_000
    (outcome,) = maintain(no_session, load_catalog(None), found, actions=[Action.EXPIRY], now_ms=now_ms)
    assert (outcome.ending, outcome.exit_code) == (Ending.REFUSED, FrazilError.exit_code)
    assert "gc.enabled=false" in outcome.sentence


def test_a_partial_rewrite_that_loses_to_merges_is_tried_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class Piece(_InPart):
        busy = True

    class Java:
        refreshed = 0

        def refresh(self) -> None:
            self.refreshed += 1

    lost = RewriteResult(lost=("its commits failed",))
    some = RewriteResult(removed=2, lost=("its commits failed",))
    answers = iter([some, LostRace("mine"), RewriteResult(removed=4, added=1), lost, lost, lost])
    monkeypatch.setattr(SparkTable, "_rewrite", lambda *_, **__: _raised(next(answers)))
    table = SparkTable(spark=None, table=_TABLE, java=Java())  # type: ignore[arg-type]
    assert table.rewrite([Piece(), Piece()], sort=False) == RewriteResult(6, 1, lost=lost.lost)  # type: ignore[list-item]
    assert table.java.refreshed == 4


def _raised(answer: RewriteResult | Exception) -> RewriteResult:
    if isinstance(answer, Exception):
        raise answer
    return answer
