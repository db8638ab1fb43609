"""The progress of a merge: as its tasks report it, and as the heartbeat and the supervisor use it."""

from __future__ import annotations

import dataclasses
import json
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from frazil import clock
from frazil.commit.marker import BatchKey
from frazil.errors import FrazilError, SchemaIncompatible, VersionChanged
from frazil.events import EventDispatcher
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import Launch, LaunchKind, ProcessMark
from frazil.merge.contract import MergeContext, MergeRules, MergeTask
from frazil.spec.model import StreamSpec
from frazil.stream import merge_tasks
from frazil.stream.attempt import AttemptAbandoned
from frazil.stream.merge_tasks import MergeRunner, MergeTasks, read_results
from frazil.stream.progress import ProgressFolder
from frazil.stream.recording import log_event
from frazil.stream.reporter import Reporter
from frazil.stream.stall import StallLimits
from frazil.supervise.decision import (
    Cause,
    Decision,
    DecisionInput,
    DesiredState,
    SupervisionPolicy,
    ValidDeclaration,
    decide_hung,
)
from tests.polling import eventually
from tests.unit.merge.made_table import MadeTable

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "value", LongType(), required=False))
FILES, ROWS = 12, 5
SPEC = StreamSpec.model_validate(
    {
        "name": "s",
        "source": {"topics": ["t"], "format": "json", "bootstrap-servers": "b:9092"},
        "table": "a.b",
        "schema": {"id": "long not null", "at": "timestamptz not null"},
        "event-time": "at",
        "mode": "upsert",
        "key": "id",
    }
)
BEGAN_MS = 1_800_000_000_000
MINUTE_MS = 60_000


def test_the_rows_of_a_merge_are_counted_without_reading_staged_files(tmp_path: Path):
    progress = ProgressFolder(str(tmp_path), {}, attempt=BEGAN_MS)
    progress.write_merged(0, rows=3)
    (tmp_path / "0.json").write_text("cut off {")
    assert progress.count_merged_rows(since=BEGAN_MS) == 3


class MergingWriter:
    """A writer that merges one change of each of twelve files, as its supervisor sees it; the test moves the clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now_ms = folder, BEGAN_MS
        monkeypatch.setattr(clock, "now_ms", lambda: self.now_ms)
        monkeypatch.setattr(merge_tasks, "MIN_MERGE_WRITE_INTERVAL_S", 0.0)
        self.progress = ProgressFolder(str(folder / "progress"), {})
        self.events = EventDispatcher("s", log_event, clock_ms=lambda: self.now_ms)
        self.reporter = Reporter(self.events, fingerprint="f", folder=folder, limits=StallLimits(60_000, 60_000))
        self.reporter.set_progress(self.progress, merges=True)
        table = MadeTable(folder, SCHEMA, MergeRules(("id",)))
        for first in range(0, FILES * ROWS, ROWS):
            table.land([{"id": first + n, "value": 0} for n in range(ROWS)])
        (staged,) = table.stage([{"id": n * ROWS, "value": 1} for n in range(FILES)])
        self.context = MergeContext("s", table.rules, table.changes, table.target)
        self.tasks = [MergeTask(0, (staged.path,), tuple(table.files), inserts=True)]

    def heartbeat(self) -> Heartbeat:
        self.reporter.send_heartbeat()
        found = Heartbeat.read(self.folder)
        assert found is not None
        return found

    def after(self, minutes: int) -> Decision | None:
        """Return what the supervisor decides this many minutes later."""
        self.now_ms += minutes * MINUTE_MS
        launch = Launch("L", LaunchKind.SUPERVISED, BEGAN_MS, "f", 0, writer=ProcessMark(1, 1.0))
        writer = Observation(ProcessState.RUNNING, launch, self.heartbeat(), ())
        observed = DecisionInput(writer, ValidDeclaration("f"), DesiredState(), SupervisionPolicy.for_stream(SPEC))
        return decide_hung(observed, launch, now_ms=self.now_ms)

    def merge(self, plans: Sequence[str], work: MergeTasks) -> Sequence[str]:
        """Merge as an engine does."""
        arrived = pickle.loads(pickle.dumps(work))
        return [*arrived(plans)]


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MergingWriter:
    return MergingWriter(tmp_path, monkeypatch)


@pytest.mark.parametrize("phase", [Phase.COMMITTING, Phase.TAKING_OVER])
def test_a_merge_that_takes_hours_is_kept_while_it_reads_and_restarted_once_it_does_not(
    writer: MergingWriter, phase: Phase, monkeypatch: pytest.MonkeyPatch
):
    read: list[Decision | None] = []
    monkeypatch.setattr(merge_tasks, "check_not_abandoned", lambda: read.append(writer.after(9)))
    writer.reporter.set_phase(phase, key=BatchKey(1, 1))
    (result,) = MergeRunner(writer.merge, writer.progress)(writer.context, writer.tasks)
    assert result.counts.updated == FILES
    assert writer.now_ms - BEGAN_MS > 3 * 60 * MINUTE_MS
    assert len(read) >= 2 * FILES, "key columns and rows of each file"
    assert set(read) == {None}

    assert writer.after(1) is None, "its last row group was read"
    assert writer.after(9) is None
    found = writer.after(2)
    assert found is not None
    assert found.cause is Cause.HUNG


def test_the_heartbeat_reports_how_many_rows_a_merge_has_read(writer: MergingWriter):
    writer.reporter.set_phase(Phase.COMMITTING, key=BatchKey(1, 1))
    assert writer.heartbeat().merged_rows == 0
    MergeRunner(writer.merge, writer.progress)(writer.context, writer.tasks)
    assert writer.heartbeat().merged_rows >= FILES * ROWS + FILES
    writer.now_ms += 1
    writer.reporter.set_phase(Phase.COMMITTING, key=BatchKey(1, 2))
    assert writer.heartbeat().merged_rows == 0, "what an earlier batch left does not count"


def test_a_restarted_merge_ignores_the_counts_of_tasks_of_its_last_attempt(writer: MergingWriter):
    writer.reporter.set_phase(Phase.COMMITTING, key=BatchKey(1, 1))
    tries = [ProgressFolder(writer.progress.location, {}, attempt=BEGAN_MS + n) for n in range(2)]
    tries[0].write_merged(0, rows=500)
    assert writer.heartbeat().merged_rows == 500
    tries[1].write_merged(1, rows=3)
    tries[0].write_merged(0, rows=900)
    assert writer.heartbeat().merged_rows == 3


def test_a_failure_to_clear_progress_does_not_stop_a_merge(writer: MergingWriter, monkeypatch: pytest.MonkeyPatch):
    def broken(_: ProgressFolder) -> None:
        raise OSError("the disk is away")

    monkeypatch.setattr(ProgressFolder, "clear", broken)
    (result,) = MergeRunner(writer.merge, writer.progress)(writer.context, writer.tasks)
    assert result.counts.updated == FILES


def test_an_abandoned_merge_task_ends_and_leaves_no_file(writer: MergingWriter, monkeypatch: pytest.MonkeyPatch):
    before = set(Path(writer.context.target.folder).rglob("*.parquet"))
    calls = iter(range(2 * FILES + 1))

    def given_up() -> None:
        if next(calls, None) is None:
            raise AttemptAbandoned

    monkeypatch.setattr(merge_tasks, "check_not_abandoned", given_up)
    with pytest.raises(AttemptAbandoned):
        MergeRunner(writer.merge, writer.progress)(writer.context, writer.tasks)
    assert set(Path(writer.context.target.folder).rglob("*.parquet")) == before


def test_a_worker_with_other_code_refuses_a_merge_with_a_sentence(writer: MergingWriter):
    shipped, (work,) = MergeTasks((writer.context,), writer.progress).__reduce__()
    for changed in ({**work, "version": "0"}, {name: value for name, value in work.items() if name != "progress"}):
        with pytest.raises(VersionChanged, match="the next start uses the installed code"):
            read_results(shipped(changed)(["{}"]))


def test_merges_that_are_requested_while_a_job_runs_are_one_job(writer: MergingWriter):
    jobs, gate = list[int](), threading.Event()

    def merge(plans: Sequence[str], work: MergeTasks) -> Sequence[str]:
        jobs.append(len(work.contexts))
        assert gate.wait(60)
        return writer.merge(plans, work)

    run = MergeRunner(merge, writer.progress)
    with ThreadPoolExecutor(8) as pool:
        requested = [pool.submit(run, writer.context, writer.tasks) for _ in range(8)]
        eventually(lambda: len(run._waiting) == 7, within_s=60)
        gate.set()
        assert [one.result()[0].counts.updated for one in requested] == [FILES] * 8
    assert jobs == [1, 7]


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), SchemaIncompatible("not so")])
def test_a_merge_that_fails_fails_no_other_of_its_job(writer: MergingWriter, error: Exception):
    bad = dataclasses.replace(writer.context, stream="bad")
    jobs, gate = list[int](), threading.Event()

    def merge(plans: Sequence[str], work: MergeTasks) -> Sequence[str]:
        jobs.append(len(work.contexts))
        assert gate.wait(60)
        if bad not in work.contexts:
            return writer.merge(plans, work)
        if isinstance(error, FrazilError) and len(work.contexts) > 1:
            answers = [*writer.merge(plans, work)]
            answers[work.contexts.index(bad)] = json.dumps({"error_type": "SchemaIncompatible", "error": "not so"})
            return answers
        raise error

    run = MergeRunner(merge, writer.progress)
    with ThreadPoolExecutor(4) as pool:
        contexts = [writer.context, writer.context, bad, writer.context]
        requested = [pool.submit(run, context, writer.tasks) for context in contexts]
        eventually(lambda: len(run._waiting) == 3, within_s=60)
        gate.set()
        ended = [one.exception() for one in requested]
    assert [type(one) for one in ended] == [type(None), type(None), type(error), type(None)]
