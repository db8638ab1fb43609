"""A running backfill is shown, and is abandoned only if it is still as the user saw it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frazil.backfill.commit import BackfillCommitter
from frazil.backfill.request import parse_request
from frazil.commit.backfill_records import BackfillRecord, BackfillState, read_backfill
from frazil.errors import FrazilError
from frazil.history.objects import read_history
from frazil.operations.fetch import fetch_action_state, fetch_history
from frazil.operations.page_actions import PageAction
from frazil.operations.stream_actions import build_action_state, plan_abandon, possible_actions
from frazil.operations.stream_view import OpenBackfill, build_table_history
from frazil.spec.load import validate_stream
from frazil.status.recent_commits import DAY_MS
from frazil.table.branches import head_of
from tests.made_batches import MadeStream

NOW_MS = 1_700_000_000_000
REQUEST = parse_request({"stream": "ticks", "to-offsets": {"ticks": {"0": 5}}})


DECLARED: dict[str, Any] = {
    "name": "ticks",
    "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
    "table": "demo.ticks",
    "schema": {"id": "long"},
    "event-time": "kafka_timestamp",
}


@pytest.fixture
def made(frazil_home: Path) -> MadeStream:  # noqa: ARG001 - the catalog is there
    stream = MadeStream(validate_stream(DECLARED, Path("ticks.yaml")), NOW_MS, partitions=1)
    stream.begin()
    return stream


def test_without_a_backfill_in_progress_nothing_can_be_abandoned(made: MadeStream) -> None:
    assert plan_abandon(made.spec).refused == "ticks has no backfill or replay in progress"
    assert build_table_history(made.tables.main.refresh().metadata, made.spec, None, now_ms=NOW_MS).backfill is None


@pytest.mark.usefixtures("frazil_home")
def test_both_checks_recognise_a_table_without_the_columns_that_the_stream_declares_now() -> None:
    declared: dict[str, Any] = {**DECLARED, "event-time": "at", "schema": {"id": "long", "at": "timestamptz not null"}}
    without = validate_stream({**declared, "coordinates": False}, Path("ticks.yaml"))
    MadeStream(without, NOW_MS, partitions=1).begin()
    spec = validate_stream(declared, Path("ticks.yaml"))
    history = fetch_history(spec, lookback_ms=DAY_MS)
    for seen in (fetch_action_state(spec), build_action_state(None, history, is_read=True)):
        assert seen.is_read
        assert not seen.coordinates


def test_a_running_backfill_is_shown_and_can_be_abandoned(made: MadeStream) -> None:
    backfill = BackfillCommitter.begin(made.tables, REQUEST).backfill
    shown = build_table_history(made.tables.main.refresh().metadata, made.spec, None, now_ms=NOW_MS).backfill
    assert shown == OpenBackfill(backfill.id, replays=False, chunks=0, planned=0, rows=0, state="staging")
    assert PageAction.ABANDON in possible_actions(made.spec, fetch_action_state(made.spec))
    plan = plan_abandon(made.spec, by="ana, Airflow")
    assert plan.effects == (f"Backfill {backfill.id} has staged nothing yet.",)
    assert plan.refused is None
    plan.carry_out()
    ended = read_backfill(made.tables.main.refresh().metadata.properties, "ticks")
    assert ended is not None
    assert ended.state is BackfillState.ABANDONED
    reported = read_history(made.spec, since_ms=0).events
    assert [what.sentence for what in reported] == [f"backfill {backfill.id} was abandoned by ana, Airflow"]
    assert plan_abandon(made.spec).refused
    assert PageAction.ABANDON not in possible_actions(made.spec, fetch_action_state(made.spec))


def test_a_replay_is_offered_as_long_as_dead_letters_exist(made: MadeStream) -> None:
    def offers() -> tuple[PageAction, ...]:
        return possible_actions(
            made.spec, build_action_state(None, fetch_history(made.spec, lookback_ms=1), is_read=True)
        )

    assert PageAction.REPLAY not in offers()
    made.land({0: (0, 5)}, rejected={0: [1]})
    made.now_ms += 30 * DAY_MS
    assert offers()[-2:] == (PageAction.BACKFILL, PageAction.REPLAY)


def test_an_abandon_confirmation_is_invalid_for_a_later_backfill(made: MadeStream) -> None:
    BackfillCommitter.begin(made.tables, REQUEST)
    before = plan_abandon(made.spec)
    before.carry_out()
    BackfillCommitter.begin(made.tables, REQUEST)
    assert plan_abandon(made.spec).version_token != before.version_token


def test_abandoning_a_backfill_that_was_just_published_is_refused_and_not_recorded(made: MadeStream) -> None:
    committer = BackfillCommitter.begin(made.tables, REQUEST)
    plan = plan_abandon(made.spec)
    head = head_of(made.tables.main.refresh().metadata)
    assert head is not None
    committer.publish(BackfillRecord(committer.backfill, {}), audited_at=head.snapshot_id)
    with pytest.raises(FrazilError, match=r"just been published, and table demo\.ticks has its rows"):
        plan.carry_out()
    reported = read_history(made.spec, since_ms=0).events
    said = ["begins", "is published: 0 records"]
    assert [what.sentence for what in reported] == [f"backfill {committer.backfill.id} {what}" for what in said]
