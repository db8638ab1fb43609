"""The actions that a stream offers; others are refused like on the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frazil.backfill.request import check_coordinates
from frazil.commit.backfill_records import BackfillMarker, BackfillState
from frazil.commit.marker import BatchKey, Marker
from frazil.errors import FrazilError
from frazil.offsets.spans import SourceIdentity
from frazil.operations.page_actions import PageAction
from frazil.operations.stream_actions import ActionState, find_refusal, possible_actions
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec

PLAIN: dict[str, Any] = {
    "name": "ticks",
    "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
    "table": "demo.ticks",
    "schema": {"id": "string not null", "ts": "timestamptz not null"},
    "event-time": "ts",
}
KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "aligned": {"partition-by": ["hour(ts)"], "complete": "hour", "commit": {"align": "watermark"}},
    "upsert": {"mode": "upsert", "key": "id"},
    "dedupe": {"dedupe": {"key": "id", "within": "1h"}},
    "route": {"route": {"by": "field", "name": "id", "template": "demo.ticks_{value}"}},
    "no coordinates": {"coordinates": False},
}
HAS = {
    "append": {PageAction.BACKFILL, PageAction.REPLAY},
    "aligned": {PageAction.BACKFILL, PageAction.REPLAY},
    "upsert": {PageAction.BACKFILL, PageAction.REPLAY},
    "dedupe": {PageAction.BACKFILL, PageAction.REPLAY},
    "route": {PageAction.BACKFILL, PageAction.REPLAY},
    "no coordinates": set(),
}
ALWAYS = (PageAction.PAUSE, PageAction.RESTART, PageAction.RESET)
MARKER = Marker("ticks", BatchKey(1, 1), None, {}, SourceIdentity("c", {"ticks": "t"}))
BEGUN = ActionState(is_read=True, marker=MARKER)
BACKFILL = BackfillMarker("ticks", "b-1", {"stream": "ticks"}, "b", 1)
REPLAY = BackfillMarker("ticks", "r-1", {"stream": "ticks", "dead-letters": "all"}, "r", 1)


def declared(kind: str) -> StreamSpec:
    return validate_stream({**PLAIN, **KINDS[kind]}, Path("ticks.yaml"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_stream_offers_the_actions_that_apply_to_it(kind: str):
    spec = declared(kind)
    for now in (BEGUN, ActionState()):  # also while nothing is known about its table
        found = possible_actions(spec, now)
        assert found[:3] == ALWAYS
        assert {*found} - {*ALWAYS} == HAS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_an_action_that_is_not_offered_is_refused_with_the_commands_message(kind: str):
    spec = declared(kind)
    for action in (PageAction.BACKFILL, PageAction.REPLAY):
        said = find_refusal(action, spec, BEGUN)
        assert (said is None) == (action in HAS[kind])
        if said is not None:
            with pytest.raises(FrazilError) as raised:
                check_coordinates(spec)
            assert said == str(raised.value)


@pytest.mark.parametrize("action", [PageAction.BACKFILL, PageAction.REPLAY])
def test_a_stream_whose_table_has_no_kafka_coordinates_offers_no_backfill_or_replay(action: PageAction):
    missing = replace(BEGUN, coordinates=False)
    assert action not in possible_actions(declared("append"), missing)
    assert "does not store Kafka coordinates (its table does not have the columns)" in (
        find_refusal(action, declared("append"), missing) or ""
    )


def test_a_stream_without_dead_letters_has_nothing_to_replay():
    assert PageAction.REPLAY not in possible_actions(declared("upsert"), replace(BEGUN, has_dead_letters=False))


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"paused": True}, (PageAction.RESUME, PageAction.RESTART)),
        ({"given_up": True}, (PageAction.PAUSE, PageAction.RESUME, PageAction.RESTART)),
        ({"paused": True, "given_up": True}, (PageAction.RESUME, PageAction.RESTART)),
    ],
)
def test_a_stopped_stream_offers_resume_first(changes: dict[str, bool], first: tuple[PageAction, ...]):
    assert possible_actions(declared("append"), replace(BEGUN, **changes))[: len(first)] == first


def test_a_backfill_in_progress_can_be_continued_or_abandoned_and_blocks_a_replay():
    spec, now = declared("append"), replace(BEGUN, backfill=BACKFILL)
    assert possible_actions(spec, now)[3:] == (PageAction.BACKFILL, PageAction.ABANDON)
    assert "finish the backfill, or end it with `frazil backfill ticks --abandon`" in (
        find_refusal(PageAction.REPLAY, spec, now) or ""
    )
    assert possible_actions(spec, replace(now, backfill=replace(BACKFILL, state=BackfillState.PUBLISHED)))[3:] == (
        PageAction.BACKFILL,
        PageAction.REPLAY,
    )


def test_while_dead_letters_are_replayed_there_is_no_backfill_and_the_replay_can_be_finished_or_abandoned():
    spec, now = declared("append"), replace(BEGUN, backfill=REPLAY)
    assert possible_actions(spec, now)[3:] == (PageAction.ABANDON, PageAction.REPLAY)
    assert "finish it with `frazil dlq replay ticks`" in (find_refusal(PageAction.BACKFILL, spec, now) or "")


def test_a_stream_that_never_began_offers_no_action_that_needs_a_position():
    spec, now = declared("append"), ActionState(is_read=True)
    assert possible_actions(spec, now) == (PageAction.PAUSE, PageAction.RESTART)
    assert "has no marker in table demo.ticks" in (find_refusal(PageAction.BACKFILL, spec, now) or "")
    assert "has no marker: nothing is committed yet" in (find_refusal(PageAction.REPLAY, spec, now) or "")
