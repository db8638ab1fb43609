"""The data source as Spark asks it, around the planner."""

from __future__ import annotations

import json
from typing import Any, cast

from frazil.errors import OffsetGap
from frazil.stream.planner import BatchPlanner
from frazil.stream.position import Position
from frazil.stream.source import PlannedTask, PlanReader

AT = Position({("t", 0): 5})
LATER = Position({("t", 0): 9})


class FakePlanner:
    """Returns the given answers, one per call."""

    def __init__(self, *looks: Position | Exception) -> None:
        self.looks, self.position = list(looks), AT

    def next_position(self) -> Position:
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return look

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        return ({"index": 0, "ranges": [["t", 0, 5, 9]]},) if start["offsets"] != end["offsets"] else ()


def reader(*looks: Position | Exception) -> PlanReader:
    made = PlanReader({"position": json.dumps(AT.to_json())})
    made._planner = cast(BatchPlanner, FakePlanner(*looks))
    return made


def plans(made: PlanReader, start: Position, end: Position) -> list[dict[str, Any]]:
    partitions = made.partitions(start.to_json(), end.to_json())
    return [json.loads(p.plan) for p in partitions if isinstance(p, PlannedTask)]


def test_the_batch_that_spark_begins_with_where_nothing_is_unread_has_no_task():
    assert plans(reader(), AT, AT) == []


def test_a_tick_has_a_task_without_ranges_that_carries_its_position():
    tick = Position(AT.offsets, frozenset(AT.offsets))
    assert plans(reader(), AT, tick) == [{"task": {"index": 0, "ranges": []}, "position": tick.to_json()}]


def test_a_batch_has_the_planners_tasks():
    assert [plan["task"]["ranges"] for plan in plans(reader(), AT, LATER)] == [[["t", 0, 5, 9]]]


def test_what_ends_the_planner_is_told_once_and_no_later_look_takes_it_back():
    made = reader(OffsetGap("the log ends below the position"), LATER)
    assert [made.latestOffset(), made.latestOffset()] == [AT.to_json(), AT.to_json()]
