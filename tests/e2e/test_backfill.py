"""Backfills of unread records from a real broker: exactly once, wherever they are interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from frazil.audit.kafka_source import find_remaining_offsets
from frazil.audit.stream_audit import audit_stream
from frazil.backfill import commit as backfill_commit
from frazil.backfill import stage as stage_module
from frazil.backfill.commit import BackfillCommitter
from frazil.backfill.request import parse_request
from frazil.backfill.run import Backfill, open_backfill
from frazil.backfill.stage import run, stage
from frazil.commit.backfill_records import BackfillState, branch_name, read_backfill
from frazil.commit.history import last_period
from frazil.commit.journal import JournalStore
from frazil.commit.marker import read_marker
from frazil.commit.open_streams import open_stream
from frazil.errors import WriterBusy
from frazil.home import home
from frazil.host.process_log import claim_log
from frazil.stream import spark_engine
from frazil.stream.engine import Engine
from frazil.stream.spark_engine import SparkEngine
from tests.faults.exactness import check_exact
from tests.in_process_engine import InProcessEngine

BAD = [b"not json", None]
BEFORE = 2000
CHUNK = 500


class Killed(BaseException):
    """An exception that the package never catches: as after SIGKILL, none of its code runs."""


@pytest.fixture
def begun(stream: Any, events: Any) -> Any:
    """A stream that began in the middle of its topic, and has read what comes after."""
    stream.produce([*events(range(BEFORE)), *BAD], partitions=4)
    path = stream.streams / "events.yaml"
    start = datetime.now(UTC).isoformat()
    path.write_text(path.read_text().replace("format: json", f"format: json, start: '{start}'"))
    stream.produce(events(range(BEFORE, BEFORE + 100)), partitions=4)
    stream.catch_up()
    assert stream.ids() == list(range(BEFORE, BEFORE + 100))
    return stream


@pytest.fixture
def engine(begun: Any, requested_spark: Any) -> Iterator[Engine]:
    with SparkEngine(begun.spec, requested_spark) if requested_spark else InProcessEngine() as engine:
        yield engine


@contextmanager
def asking(stream: Any, **requested: Any) -> Iterator[Backfill]:
    raw = {"stream": stream.name, **{k.replace("_", "-"): v for k, v in requested.items()}}
    with open_backfill(stream.spec, parse_request(raw)) as backfill:
        yield backfill


def is_clean(stream: Any) -> bool:
    """Audit all times and the last hour, both compared with Kafka."""
    tables = open_stream(stream.spec).tables
    for window in (None, last_period(timedelta(hours=1), datetime.now(UTC))):
        found = audit_stream(tables, window=window, find_remaining_offsets=partial(find_remaining_offsets, stream.spec))
        assert found.clean, found.errors
    return sum(p.rows for p in found.partitions) == len(stream.ids())


def last_backfill(stream: Any) -> Any:
    return read_backfill(stream.table().properties, stream.name)


@pytest.mark.rotates(3)
@pytest.mark.usefixtures("spark")
def test_a_backfill_of_earlier_records_is_published_at_once_while_the_writer_continues(
    begun: Any, events: Any, engine: Engine, eventually: Callable[..., Any]
) -> None:
    with begun.writing(), asking(begun, chunk_records=1001) as backfill:
        marker = backfill.opened.tables.marker()
        plan = backfill.plan()
        planned = sum(end - start for parts in plan.spans.values() for start, end in parts)
        assert (planned, last_backfill(begun)) == (BEFORE + 2, None)
        begun.produce(events(range(BEFORE + 100, BEFORE + 200)), partitions=4)
        staged = stage(backfill, engine)
        eventually(lambda: begun.has_rows(200))
        assert begun.ids() == list(range(BEFORE, BEFORE + 200)), "what is staged is not in main"
        assert (staged.state, staged.records, staged.rejected, staged.chunks) == (BackfillState.STAGED, BEFORE, 2, 2)
        done = backfill.publish()
    assert done.state is BackfillState.PUBLISHED
    table = begun.table()
    assert branch_name(begun.name) not in table.metadata.refs
    after = read_marker(table.properties, begun.name)
    assert after.watermark_us is not None
    assert after.watermark_us >= marker.watermark_us
    (summary,) = [s.summary for s in table.metadata.snapshots if s.summary.get("frazil.backfill-stream")]
    assert json.loads(summary["frazil.windows"]) == {"1704067200000000": BEFORE}
    assert (summary["frazil.records"], summary["frazil.rejected"], summary["frazil.stream"]) == (str(BEFORE), "2", None)
    check_exact(begun, range(BEFORE + 200), rejected=BAD)
    assert is_clean(begun)

    with asking(begun) as again:
        assert again.plan().spans == {}
        assert run(again, engine) is None


def kill_after(
    patch: pytest.MonkeyPatch, owner: Any, name: str, *, when: Callable[..., bool] = lambda *_: True
) -> None:
    """The run dies when the method has done its work."""
    original = getattr(owner, name)

    def dying(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if when(*args):
            raise Killed(name)
        return answer

    patch.setattr(owner, name, dying)


def dead_letters(_: Any, handle: Any, *__: Any) -> bool:
    return handle.identifier.endswith("_dead_letters")


KILLS: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "after it took the lane over": (BackfillCommitter, "begin", lambda *_: True),
    "after a chunk's files": (stage_module, "_stage_chunk", lambda *_: True),
    "after a chunk's journal": (JournalStore, "put", lambda *_: True),
    "after a chunk": (BackfillCommitter, "commit", lambda *_: True),
    "after a chunk's dead letters": (BackfillCommitter, "_change", dead_letters),
    "after staging": (BackfillCommitter, "mark_staged", lambda *_: True),
    "after the audit": (Backfill, "_audit", lambda *_: True),
    "before its dead letters are published": (backfill_commit, "_publish", lambda *_: True),
}


def test_a_backfill_that_is_killed_at_any_point_and_run_again_lands_everything_once(
    begun: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for owner, name, when in KILLS.values():
        with monkeypatch.context() as patch, asking(begun, chunk_records=CHUNK) as backfill:
            kill_after(patch, owner, name, when=when)
            with pytest.raises(Killed, match=name):
                run(backfill, engine)
        seen.append(last_backfill(begun))
    assert [last.chunks for last in seen] == [0, 0, 0, 2, 4, 5, 5, 5]
    assert len({last.id for last in seen}) == 1, "the same request goes on with the same lane"
    assert seen[-1].state is BackfillState.PUBLISHED

    with asking(begun) as backfill:
        assert run(backfill, engine) is None

    check_exact(begun, range(BEFORE + 100), rejected=BAD)
    assert is_clean(begun)


def test_bounds_select_what_lands_and_a_branch_waits_until_the_table_becomes_its_target(
    begun: Any, engine: Engine, frazil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = {begun.topic: {str(p): BEFORE // 8 for p in range(4)}}
    dry = json.loads(frazil("backfill", begun.name, "--to", json.dumps(half), "--dry-run", "--json").stdout)
    assert (dry["max-records"], dry["records"], dry["partitions"], dry["chunks"]) == (1000, 1000, 1, 1)
    assert (last_backfill(begun), begun.ids()) == (None, list(range(BEFORE, BEFORE + 100))), "a dry run touches nothing"
    with asking(begun, to_offsets=half, target="branch") as backfill:
        left = run(backfill, engine)
    assert (left.state, left.records, len(begun.ids())) == (BackfillState.STAGED, BEFORE // 2, 100)
    branch = begun.table().metadata.refs[branch_name(begun.name)].snapshot_id
    staged = begun.table().scan(snapshot_id=branch, selected_fields=("id",)).to_arrow()["id"].to_pylist()
    assert sorted(staged) == list(range(BEFORE // 2)), "a branch holds what is backfilled, and no more"
    assert "staged, on branch frazil-backfill-events" in frazil("backfill", begun.name, "--status").stdout

    with asking(begun) as other, pytest.raises(WriterBusy, match="--abandon"):
        run(other, engine)
    log_file = home() / "backfill" / "events.log"
    log_file.parent.mkdir()
    log_file.write_text("output of the backfill that runs")
    refused = frazil("backfill", begun.name)
    assert (refused.returncode, "--abandon" in refused.stderr) == (WriterBusy.exit_code, True)
    assert log_file.read_text() == "output of the backfill that runs"
    with asking(begun, to_offsets=half) as backfill:
        assert backfill.publish().id == left.id
    with asking(begun) as other:
        stage(other, engine)
    assert "is abandoned" in frazil("backfill", begun.name, "--abandon", "--yes").stdout
    check_exact(begun, [*range(BEFORE // 2), *range(BEFORE, BEFORE + 100)])
    assert is_clean(begun)

    minute = {"from_event_time": "2024-01-01T00:01:00Z", "to_event_time": "2024-01-01T00:02:00Z"}
    with asking(begun, **minute) as backfill:
        assert run(backfill, engine).records == 200, "rows of the minute that the table lacks, and no dead letters"
    check_exact(begun, [*range(1200), *range(BEFORE, BEFORE + 100)])
    assert is_clean(begun)
    log_files: list[Path] = []

    def start(*_: Any, output: Path) -> InProcessEngine:
        log_files.append(output)
        return InProcessEngine()

    monkeypatch.setattr(spark_engine, "SparkEngine", start)
    with claim_log(log_file):
        refused = frazil("backfill", begun.name)
    assert (refused.returncode, "the same command is running" in refused.stderr) == (WriterBusy.exit_code, True)
    landed = json.loads(frazil("backfill", begun.name, "--json").stdout)
    assert (landed["state"], landed["records"]) == ("published", 800)
    assert frazil("backfill", begun.name, "--json").stdout.strip() == "null"
    assert {*log_files} == {log_file}
    check_exact(begun, range(BEFORE + 100), rejected=BAD)
    assert is_clean(begun)


@pytest.mark.parametrize("landed", [0, BEFORE])
def test_the_estimated_size_of_few_records_includes_the_overhead_of_each_file(
    stream: Any, events: Any, frazil: Any, monkeypatch: pytest.MonkeyPatch, landed: int
) -> None:
    monkeypatch.setattr(InProcessEngine, "parallelism", 1)  # as the command
    stream.produce(events(range(3)))
    path = stream.streams / "events.yaml"
    path.write_text(path.read_text().replace("format: json", f"format: json, start: '{datetime.now(UTC).isoformat()}'"))
    stream.produce(events(range(3, 3 + landed)))
    stream.catch_up()
    expected = json.loads(frazil("backfill", stream.name, "--dry-run", "--json").stdout)["bytes"]
    with asking(stream) as backfill, InProcessEngine() as engine:
        done = run(backfill, engine)
    assert done.bytes / 1.5 < expected < 1.5 * done.bytes


@pytest.mark.soak  # two starts of spark-submit
def test_an_application_killed_in_a_chunk_continues_with_the_next_chunk(begun: Any, eventually: Any) -> None:
    request = json.dumps({"chunk-records": 100})
    application = Path(__file__).parents[2] / "spark_apps" / "backfill.py"
    command = ["spark-submit", "--master", "local[1]", str(application), begun.name, "--streams", str(begun.streams)]
    command += ["--request", request]
    first = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: (last := last_backfill(begun)) is not None and last.chunks >= 2)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    killed = last_backfill(begun)
    assert killed.state is BackfillState.STAGING
    subprocess.run(command, check=True, capture_output=True, timeout=250)
    staged = last_backfill(begun)
    assert (staged.id, staged.state, staged.epoch) == (killed.id, BackfillState.STAGED, killed.epoch + 1)
    with asking(begun) as backfill:
        backfill.publish()
    check_exact(begun, range(BEFORE + 100), rejected=BAD)
    assert is_clean(begun)
