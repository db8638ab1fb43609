"""Finds the actions that are possible on a stream, and why others are not. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frazil.backfill.request import check_coordinates
from frazil.backfill.rules import check_no_backfill, check_no_replay, require_marker, require_own_marker
from frazil.commit.backfill_marker import BackfillMarker
from frazil.commit.marker import Marker
from frazil.errors import FrazilError
from frazil.operations.page_actions import PageAction
from frazil.operations.stream_view import TableHistory
from frazil.spec.model import StreamSpec
from frazil.status.state import State, StreamState


@dataclass(frozen=True, slots=True)
class ActionState:
    paused: bool = False
    given_up: bool = False
    is_read: bool = False
    """Whether the table was read or does not exist. If False, only the declaration is checked."""
    marker: Marker | None = None
    backfill: BackfillMarker | None = None
    has_dead_letters: bool = True
    coordinates: bool = True
    """Whether the table has the columns for topic, partition and offset; True if unknown."""


def build_action_state(status: StreamState | None, history: TableHistory | None, *, is_read: bool) -> ActionState:
    """Build the state from a stream's status and history. For `is_read`, see `ActionState`."""
    if status is not None and status.table_exists is False:
        history, is_read = None, True
    found = history or TableHistory(has_dead_letters=not is_read)
    return ActionState(
        paused=status is not None and status.desired == "paused",
        given_up=status is not None and status.state is State.GIVEN_UP,
        is_read=is_read and not found.unreadable,
        marker=found.marker,
        backfill=found.last_backfill,
        has_dead_letters=found.has_dead_letters,
        coordinates=found.coordinates,
    )


def possible_actions(spec: StreamSpec, now: ActionState) -> tuple[PageAction, ...]:
    """Return the possible actions, in the order in which the page shows them."""
    return tuple(action for action in _list_candidates(now) if find_refusal(action, spec, now) is None)


def _list_candidates(now: ActionState) -> Iterator[PageAction]:
    """Yield the actions that the state suggests, before their conditions are checked."""
    yield PageAction.RESUME if now.paused else PageAction.PAUSE
    if now.given_up and not now.paused:
        yield PageAction.RESUME
    yield PageAction.RESTART
    if now.marker is not None or not now.is_read:
        yield PageAction.RESET
    yield PageAction.BACKFILL
    if now.backfill is not None and now.backfill.is_open:
        yield PageAction.ABANDON
    if now.has_dead_letters:
        yield PageAction.REPLAY


def find_refusal(action: PageAction, spec: StreamSpec, now: ActionState) -> str | None:
    """Return why a backfill or replay is not possible now; None if it is possible, and for other actions."""
    checks = {
        PageAction.BACKFILL: (check_no_replay, require_marker),
        PageAction.REPLAY: (check_no_backfill, lambda spec, marker: require_own_marker(spec.name, marker)),
    }
    if action not in checks:
        return None
    check_other, check_marker = checks[action]
    try:
        check_coordinates(spec, table_has=now.coordinates)
        check_other(now.backfill)
        if now.is_read:
            check_marker(spec, now.marker)
    except FrazilError as error:
        return str(error)
    return None
