"""The results before and after a shuffle become one result per task, or no batch."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from frazil import errors
from frazil.commit.marker import BatchKey
from frazil.ingest.contract import RangeProgress, Shuffle, StageContext, StagedFile, StageResult, Target, TargetTable
from frazil.stream.batch import BatchRunner
from frazil.stream.engine import RecordSuspected, TaskAnswer, read_shuffled_answers
from frazil.stream.plan import Position
from frazil.stream.progress import ProgressFolder
from frazil.stream.stage_rows import error_answer, parse_answer

TABLE = TargetTable("{}", "{}", "{}", {}, "/data/1/1", 1)
TARGETS: dict[Target, TargetTable] = {"main": TABLE, "dead-letters": TABLE}
CONTEXT = StageContext("ticks", 1, 1, {}, "json", "at", coordinates=True, targets=TARGETS, topic_ids={})


def staged(path: str) -> StagedFile:
    none: dict[int, Any] = {}
    return StagedFile("main", path, 1, 1, 0, 0, None, ("a",), none, none, none, none, none, none, ())


def reader(task: int, sent: list[int]) -> dict[str, Any]:
    progress = RangeProgress("t", task, 0, 9, sum(sent), 0, None)
    result = StageResult((staged(f"dead-{task}"),), (progress,), None, ("a note",)).to_json()
    return {"read": task, "result": result, "sent": sent, "partitions": 5 + task, "task_s": 1.0}


def writer(number: int, received: dict[int, int]) -> dict[str, Any]:
    return {"write": number, "files": [staged(f"main-{number}").to_json()], "received": received, "task_s": 0.5}


VALID = [writer(1, {0: 3}), reader(1, [4, 0]), reader(0, [2, 3]), writer(0, {0: 2, 1: 4})]


def answered(*answers: dict[str, Any]) -> tuple[TaskAnswer, ...]:
    return read_shuffled_answers(map(json.dumps, answers))


def test_each_task_answers_once_with_all_its_files() -> None:
    found = answered(*VALID)
    assert [[file.path for file in a.result.files] for a in found] == [["dead-0", "main-0"], ["dead-1", "main-1"]]
    assert [[p.records for p in a.result.progress] for a in found] == [[5], [4]]
    assert [(a.seconds, a.partitions) for a in found] == [(1.5, 5), (1.5, 6)]
    assert found[0].result.notices == ("a note",)


@pytest.mark.parametrize(
    "answers",
    [
        [*VALID[:3], writer(0, {0: 2, 1: 3})],
        [*VALID[:3], writer(0, {0: 2})],
        [*VALID[:3], writer(0, {0: 2, 1: 4, 2: 1})],
        VALID[:3],
        VALID[1:],
        [VALID[0], VALID[2], VALID[3]],
        [*VALID, VALID[0]],
        [*VALID, VALID[1]],
    ],
)
def test_shuffled_rows_that_were_lost_or_changed_fail_the_batch(answers: list[dict[str, Any]]) -> None:
    with pytest.raises(errors.StaleBatch):
        answered(*answers)


def test_a_task_error_is_raised_and_takes_precedence_over_a_suspect_record() -> None:
    suspect, refused = {"suspect": "ValueError: a bug"}, {"error_type": "AccessDenied", "error": "no"}
    with pytest.raises(errors.AccessDenied, match="no"):
        answered(suspect, refused, *VALID)
    with pytest.raises(RecordSuspected, match="ValueError: a bug"):
        answered(*VALID, suspect)


def test_a_task_error_keeps_its_stream_and_remedy_apart() -> None:
    answer = json.dumps(error_answer(errors.AccessDenied("no", stream="s", remedy="Grant it")))
    with pytest.raises(errors.AccessDenied) as raised:
        parse_answer(answer)
    assert str(raised.value) == "stream s: no. Grant it"
    assert errors.error_text(raised.value) == "AccessDenied: no. Grant it"


def test_a_batch_with_a_suspect_record_is_restaged_without_a_shuffle() -> None:
    shuffle = Shuffle(2)
    seen: list[Shuffle | None] = []

    def stage(work: Any) -> tuple[TaskAnswer, ...]:
        seen.append(work.context.shuffle)
        if work.context.shuffle:
            raise RecordSuspected("ValueError: a bug")
        return (TaskAnswer(StageResult((), ()), 1.0),)

    runner: Any = SimpleNamespace(
        _build_context=lambda _: CONTEXT,
        _decide_shuffle=lambda *_, **__: shuffle,
        _build_journal=lambda *_: None,
        progress=ProgressFolder("/progress", {}),
        _evolve_tables=lambda *_: False,
    )
    runner._stage_once = partial(BatchRunner._stage_once, runner)
    answers, _ = BatchRunner.stage(runner, stage, BatchKey(1, 1), Position({}), tasks=2)
    assert (seen, len(answers)) == ([shuffle, None], 1)
