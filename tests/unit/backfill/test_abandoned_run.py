"""A command's run ends if its backfill is abandoned, and never restarts it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from frazil.backfill import stage as staging
from frazil.backfill.commit import BackfillCommitter, abandon
from frazil.backfill.request import parse_request
from frazil.backfill.run import Backfill, BackfillPlan
from frazil.commit.backfill_records import BackfillMarker, BackfillState, property_name, unsettled_backfill
from frazil.commit.journal import Journal
from frazil.errors import BackfillAbandoned, FrazilError, StaleBatch
from frazil.offsets.spans import offset_bitmap
from tests.unit.backfill.test_commit import chunk, stage


def backfill_of(live: Any) -> Backfill:
    opened: Any = SimpleNamespace(tables=live.tables, spec=SimpleNamespace(name="events"))
    source: Any = SimpleNamespace(chunks=lambda spans, **_: [spans])
    return Backfill(parse_request({"stream": "events"}), opened, source)


def test_a_command_ends_if_its_backfill_was_abandoned_and_its_last_audit_was_stale(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backfill, audits = backfill_of(live), iter(range(3))
    stage(live, BackfillCommitter.begin(live.tables, backfill.request))

    def audit(_: Backfill, committer: BackfillCommitter) -> None:
        if next(audits) == 2:
            abandon(live.view(), committer.backfill, by="ada")
        raise StaleBatch("landed meanwhile")

    monkeypatch.setattr(Backfill, "_audit", audit)
    with pytest.raises(BackfillAbandoned, match="ada abandoned"):
        backfill.publish()
    with pytest.raises(BackfillAbandoned, match="ada abandoned"):
        staging.stage(backfill, None)  # type: ignore[arg-type] - it gets no further
    backfill_of(live).check_run_not_abandoned()  # the command given again


@pytest.mark.parametrize("met", [FileNotFoundError("part-0.parquet"), FrazilError("a file lacks rows")])
def test_a_command_ends_if_its_backfill_was_abandoned_and_its_audited_files_are_gone(
    live: Any, monkeypatch: pytest.MonkeyPatch, met: Exception
) -> None:
    backfill = backfill_of(live)
    stage(live, BackfillCommitter.begin(live.tables, backfill.request))

    def audit(_: Backfill, committer: BackfillCommitter) -> None:
        abandon(live.view(), committer.backfill, by="ada")
        raise met

    monkeypatch.setattr(Backfill, "_audit", audit)
    with pytest.raises(BackfillAbandoned, match="ada abandoned"):
        backfill.publish()


def test_a_command_ends_if_its_backfill_was_abandoned_while_it_staged_a_chunk(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan: Any = BackfillPlan({("events", 0): offset_bitmap(0, 5)}, 5, None)  # type: ignore[arg-type]

    def staged(_: Backfill, __: Any, committer: BackfillCommitter, *___: Any) -> tuple[Journal, list[Any]]:
        journal = chunk(live, committer, {0: (0, 5)}, set())
        abandon(live.view(), committer.backfill, by="ada")
        return journal, []

    monkeypatch.setattr(Backfill, "check", lambda _: None)
    monkeypatch.setattr(Backfill, "plan", lambda *_: plan)
    monkeypatch.setattr(staging, "_stage_chunk", staged)
    with pytest.raises(BackfillAbandoned, match="ada abandoned"):
        staging.stage(backfill_of(live), None)  # type: ignore[arg-type] - `staged` asks no engine


@pytest.mark.parametrize(
    ("default", "own", "unsettled", "also_if_abandoned"),
    [
        ("published", "staged", True, True),
        ("published", "published", False, False),
        ("abandoned", "staged", False, True),
        ("staged", "staged", False, False),
        ("staging", "staging", False, False),
    ],
)
def test_a_backfill_is_unsettled_while_its_dead_letter_table_is_behind_its_table(
    default: str, own: str, unsettled: bool, also_if_abandoned: bool
) -> None:
    marker = BackfillMarker("s", "b", {}, "d", 1)
    of_table, of_dead_letters = (
        {property_name("s"): dataclasses.replace(marker, state=BackfillState(state)).to_property()}
        for state in (default, own)
    )
    assert bool(unsettled_backfill(of_table, of_dead_letters, "s")) is unsettled
    assert bool(unsettled_backfill(of_table, of_dead_letters, "s", abandoned=True)) is also_if_abandoned
