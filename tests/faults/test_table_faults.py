"""Faults of tables, journals, disks and clocks under a writer: no row is lost or repeated, no file is left over."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pyiceberg.serializers import FromInputFile
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

from frazil.commit.committer import Committer
from frazil.commit.journal import Journal
from frazil.commit.marker import read_marker
from frazil.commit.sweep import referenced_paths
from frazil.errors import Fenced, RolledBack, StaleBatch, StorageUnavailable
from frazil.home import home, run_folder
from frazil.host.heartbeat import Heartbeat
from frazil.ingest.parquet import ParquetFile
from frazil.stream import outage
from frazil.stream import writer as writer_module
from frazil.stream.batch import BatchRunner
from frazil.stream.engine import Stage
from frazil.stream.stage_rows import StageRows
from frazil.table import storage
from frazil.table.catalogs import load_catalog
from frazil.table.tables import state_location
from tests.java_rules import check_times

from .exactness import check_exact
from .outages import for_a_while, locked

BAD = [b"not json", b"[]"]


class CrashedError(Exception):
    """Nothing of the batch runs after it, as if the process had died."""


def crash_before_the_commit(stream: Any) -> None:
    """A run that ends when its first batch is journaled."""

    def die(*_: object, **__: object) -> None:
        raise CrashedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Committer, "commit", die)
        with pytest.raises(CrashedError):
            stream.catch_up()


@pytest.fixture
def full_disk(spark: Any) -> Iterator[Callable[[], None]]:
    """A disk with room for one megabyte of each file, for this process and Spark's; called, there is room again.

    A limit that any user may set: the system refuses a write as on a full file system, with another number.
    """
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)

    def limit(soft: int) -> None:
        for process in (psutil.Process(), jvm, *jvm.children(recursive=True)):
            process.rlimit(psutil.RLIMIT_FSIZE, (soft, room[1]))

    limit(2**20)
    try:
        yield lambda: limit(room[0])
    finally:
        limit(room[0])


@pytest.mark.rotates(2)
def test_a_disk_that_is_full_while_staging_ends_the_writer_and_loses_nothing(
    full_disk: Callable[[], None], stream: Any, event: Callable[[int], bytes]
):
    stream.produce((wide(event, n) for n in range(20_000)), partitions=4)
    with pytest.raises(Exception, match="File too large"):
        stream.catch_up()
    assert stream.ids() == []
    full_disk()
    stream.catch_up()
    check_exact(stream, range(20_000))


@pytest.mark.rotates(2)
def test_a_writer_whose_run_folder_is_deleted_starts_from_the_marker(stream: Any, events: Any):
    stream.produce(events(range(1000)), partitions=4)
    stream.catch_up()
    shutil.rmtree(run_folder(stream.name))
    stream.produce(events(range(1000, 1500)), partitions=4)
    stream.catch_up()
    check_exact(stream, range(1500))


def test_a_table_rolled_back_by_two_commits_is_refused_until_its_loss_is_accepted(
    stream: Any, events: Any, frazil: Any
):
    snapshots = []
    for start in (0, 100, 200):
        stream.produce(events(range(start, start + 100)), partitions=4)
        stream.catch_up()
        snapshots.append(stream.table().current_snapshot().snapshot_id)
    stream.table().manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    with pytest.raises(RolledBack, match="frazil reset events --to table"):
        stream.catch_up()
    assert stream.ids() == list(range(100))
    assert frazil("reset", stream.name, "--to", "marker", "--yes").returncode == 0
    stream.produce(events(range(300, 400)), partitions=4)
    stream.catch_up()
    check_exact(stream, [*range(100), *range(300, 400)])


def test_a_spec_or_schema_change_while_files_are_staged_does_no_harm(
    stream: Any, events: Any, monkeypatch: pytest.MonkeyPatch
):
    run = BatchRunner.run
    changes = iter([add_a_column, partition_by_bucket, lambda _: None])

    def run_while_others_change_the_table(self: BatchRunner, stage: Stage, *of_batch: Any, **counts: Any) -> None:
        def stage_and_change(work: StageRows) -> Any:
            answers = stage(work)
            next(changes)(stream.table())
            return answers

        run(self, stage_and_change, *of_batch, **counts)

    monkeypatch.setattr(BatchRunner, "run", run_while_others_change_the_table)
    for start in (0, 1000, 2000):
        stream.produce(events(range(start, start + 1000)), partitions=4)
        stream.catch_up()
    check_exact(stream, range(3000))
    assert set(stream.table().inspect.files()["spec_id"].to_pylist()) == {0, 1}
    assert stream.table().scan(row_filter="id = 1500").to_arrow().num_rows == 1


def add_a_column(table: Any) -> None:
    with table.update_schema() as change:
        change.add_column("remark", StringType())


def partition_by_bucket(table: Any) -> None:
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(4))


@pytest.mark.parametrize("lands", ["before its answer is lost", "after it was reported failed"])
def test_a_commit_whose_outcome_is_unknown_lands_once(
    stream: Any, events: Any, monkeypatch: pytest.MonkeyPatch, lands: str
):
    catalog = type(load_catalog(None))
    commit = catalog.commit_table
    unlucky = iter([True])
    late: list[tuple[Any, ...]] = []

    def lose_one_answer(self: Any, table: Any, requirements: Any, updates: Any) -> Any:
        while late:  # just before the writer's next attempt, which has looked and not found it
            commit(self, *late.pop())
        appends = any(
            getattr(u, "action", "") == "add-snapshot" and u.snapshot.summary["added-records"] for u in updates
        )
        if not appends or not next(unlucky, False):
            return commit(self, table, requirements, updates)
        if lands.startswith("before"):
            commit(self, table, requirements, updates)
        else:
            late.append((table, requirements, updates))
        raise TimeoutError("the catalog's answer was lost")

    monkeypatch.setattr(catalog, "commit_table", lose_one_answer)
    stream.produce(events(range(1000)), partitions=4)
    stream.catch_up()
    assert next(unlucky, "all answered") == "all answered"
    assert not late
    check_exact(stream, range(1000))


def test_a_batch_with_a_deleted_journal_is_staged_again(stream: Any, events: Any):
    stream.produce([*events(range(1000)), *BAD], partitions=4)
    crash_before_the_commit(stream)
    (journal,) = journals(stream)
    journal.unlink()
    stream.catch_up()
    check_exact(stream, range(1000), rejected=BAD)


def test_a_journal_of_another_stream_in_its_place_is_not_committed(stream: Any, events: Any):
    stream.produce(events(range(1000)), partitions=4)
    crash_before_the_commit(stream)
    (path,) = journals(stream)
    journal = Journal.from_bytes(path.read_bytes())
    assert journal is not None
    foreign = path.read_bytes().replace(b'"stream":"events"', b'"stream":"orders"')
    path.write_bytes(foreign)
    stream.catch_up()
    check_exact(stream, range(1000))
    assert path.read_bytes() == foreign, "what is another stream's is left to it"


@for_a_while
def test_a_catalog_that_is_out_of_reach_is_waited_for(
    stream: Any, events: Any, eventually: Any, throughout: Any, for_s: float
):
    stream.produce(events(range(1000)), partitions=4)
    with stream.writing() as writer:
        eventually(lambda: stream.has_rows(1000))
        with locked(home() / "catalog.db"):
            stream.produce(events(range(1000, 2000)), partitions=4)
            throughout(lambda: writer.runs, for_s=for_s)
        eventually(lambda: stream.has_rows(2000) or not writer.runs)
    check_exact(stream, range(2000))


def test_a_clock_that_steps_back_an_hour_changes_nothing(stream: Any, events: Any, monkeypatch: pytest.MonkeyPatch):
    """The clock was an hour ahead at first. The times that JVM engines check stay in order in all metadata."""
    now_ms = writer_module.clock.now_ms
    for number, step_ms in enumerate((3_600_000, 0, -3_600_000)):
        monkeypatch.setattr(writer_module, "clock", SimpleNamespace(now_ms=lambda step_ms=step_ms: now_ms() + step_ms))
        stream.produce(events(range(number * 500, number * 500 + 500)), partitions=4)
        stream.catch_up()
    check_exact(stream, range(1500))
    metadata = stream.table().metadata
    times = [s.timestamp_ms for s in metadata.snapshots]
    assert times == sorted(times)
    assert metadata.last_updated_ms >= times[-1]
    check_times(metadata)


@pytest.mark.rotates(3)
def test_continuous_compaction_and_expiry_lose_no_row_of_a_writer(
    spark: Any, in_sparks_catalog: Any, events: Any, eventually: Any
):
    """Spark rewrites the table's files and keeps one snapshot, again and again, while batches are committed."""
    stream = in_sparks_catalog
    stream.declare("commit: {interval: 200ms}\n")
    stream.produce(events(range(500)), partitions=4)
    rounds = 0
    with stream.writing() as writer:
        eventually(lambda: stream.has_rows(500))
        for start in range(500, 4500, 500):
            stream.produce(events(range(start, start + 500)), partitions=4)
            maintain(spark, f"test.{stream.name}")
            rounds += 1
            assert writer.runs
        eventually(lambda: stream.has_rows(4500) or not writer.runs)
    assert stream.ids() == list(range(4500))
    assert rounds == 8
    assert not {path for path in referenced_paths(stream.table()) if not Path(path).exists()}


def maintain(spark: Any, table: str) -> None:
    spark.sql(f"CALL default.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    spark.sql(
        f"CALL default.system.expire_snapshots(table => '{table}', retain_last => 1, "
        "older_than => TIMESTAMP '2999-01-01 00:00:00')"
    )


@pytest.fixture
def other_host(tmp_path: Path, frazil_home: Path) -> dict[str, str]:
    """The environment of a writer on another host: its own FRAZIL_HOME, and the same catalog."""
    return {
        **os.environ,
        "FRAZIL_HOME": str(tmp_path / "other-host"),
        "PYICEBERG_CATALOG__DEFAULT__TYPE": "sql",
        "PYICEBERG_CATALOG__DEFAULT__URI": f"sqlite:///{frazil_home}/catalog.db",
        "PYICEBERG_CATALOG__DEFAULT__WAREHOUSE": f"file://{frazil_home}/warehouse",
    }


@pytest.mark.rotates(2)
@pytest.mark.parametrize("signal_", ["none", "SIGSTOP"])
def test_the_older_of_two_writers_of_one_stream_is_fenced_and_reports_it(
    stream: Any, events: Any, other_host: dict[str, str], eventually: Any, signal_: str
):
    """Both run at once; or the older and its Spark are paused with SIGSTOP, replaced, and continued later."""
    stream.produce(events(range(1000)), partitions=4)
    command = stream.command(without_jvm=signal_ == "none")
    older = subprocess.Popen(command, env=other_host, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: stream.has_rows(1000) or older.poll() is not None)
        if signal_ == "SIGSTOP":
            older.send_signal(signal.SIGSTOP)
        with stream.writing() as newer:
            stream.produce(events(range(1000, 2000)), partitions=4)
            eventually(lambda: stream.has_rows(2000) and epoch(stream) == 2)
            older.send_signal(signal.SIGCONT)
            stream.produce(events(range(2000, 3000)), partitions=4)
            _, said = older.communicate(timeout=120)
            eventually(lambda: stream.has_rows(3000) or not newer.runs)
    finally:
        older.kill()
    assert older.returncode == Fenced.exit_code, said[-3000:]
    assert "was replaced by epoch 2" in said
    stream.catch_up()
    check_exact(stream, range(3000))


@pytest.mark.usefixtures("spark")
def test_a_paused_writer_that_resumes_a_stale_batch_is_fenced_and_its_successor_continues(stream: Any, events: Any):
    """Paused while it stages, and replaced by a writer that sweeps its files."""

    def replaced(runner: BatchRunner, *_: object, **__: object) -> None:
        Committer.take_over(runner.tables, source=runner.marker.source, initial=dict)
        raise StaleBatch("its files are gone")

    stream.produce(events(range(1000)), partitions=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchRunner, "stage", replaced)
        with pytest.raises(Fenced, match="was replaced by epoch 2"):
            stream.catch_up()
    assert epoch(stream) == 2
    stream.catch_up()
    check_exact(stream, range(1000))


def epoch(stream: Any) -> int:
    marker = read_marker(stream.table().properties, stream.name)
    return marker.key.epoch if marker else 0


def journals(stream: Any) -> list[Path]:
    folder = Path(state_location(stream.table(), stream.name).removeprefix("file://"))
    return sorted(p for p in (folder / "journal").rglob("*") if p.is_file())


def wide(event: Callable[[int], bytes], number: int) -> bytes:
    """An event whose note does not compress: about 200 bytes of Parquet."""
    return event(number).replace(b'"x"', b'"%s"' % os.urandom(150).hex().encode())


@pytest.mark.parametrize(
    ("owner", "write"),
    [
        (ParquetFile, "write"),
        (os, "link"),
        (os, "fsync"),
        (storage, "_list_files"),
        (FromInputFile, "table_metadata"),
        (Heartbeat, "write"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_input_or_output_error_ends_the_writer_with_a_reason_and_loses_nothing(
    owner: Any, write: str, stream: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.produce(events(range(10)))
    stream.catch_up()
    stream.produce(events(range(10, 20)))

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(outage, "OUTAGE_TIMEOUT_S", 0.0)
        patch.setattr(owner, write, fail)
        with pytest.raises(StorageUnavailable, match=r"^the disk of .* fails: \[Errno 5\] .*\. Check the disk"):
            stream.catch_up()
    stream.catch_up()
    assert stream.ids() == list(range(20))
