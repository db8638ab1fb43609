"""Compaction, manifests, expiry and orphans run without pause, and disturb neither a writer nor a reader."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frazil.commit.sweep import referenced_paths
from frazil.home import run_folder
from frazil.host.local import LocalLauncher
from frazil.host.records import read_exits
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.outcomes import Ending
from frazil.maintenance.run import maintain
from frazil.maintenance.tables import find_maintained
from frazil.supervise.supervised import Program, SupervisedStream
from frazil.supervise.supervisor import Supervisor
from frazil.table.catalogs import load_catalog

from .exactness import check_exact
from .test_random_kills import APPLICATION, ROUND_S, Load, forever

HOUR_MS = 3_600_000
EAGER = """
commit: {interval: 500ms}
maintenance:
  compaction: {min-files: 2, open-files: 2}
  manifests: {max-count: 2}
  expiry: {keep: KEEP, at-least: 30, at-most: 1000}
  orphans: {older-than: 1000h, max-share: 100}
"""
RECENT = 10
"""Snapshots that readers choose from: a third of those that are always kept."""


class Reader:
    """Reads recent snapshots of the table one by one, and compares each with its own summary."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.reads = 0

    def step(self) -> None:
        table = self._stream.table()
        newest = [s for s in table.metadata.snapshots if s.summary][-RECENT:]
        if not newest:
            return
        snapshot = random.choice(newest)
        ids = table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=("id",)).to_arrow()["id"]
        assert len(ids) == int(snapshot.summary["total-records"])
        assert len(ids.unique()) == len(ids), "a reader saw a record twice"
        self.reads += 1


class Maintainer:
    """Every action, again and again, where every file is old enough to go, and every round an hour after the last."""

    def __init__(self, stream: Any, spark: Any) -> None:
        self._stream, self._spark = stream, spark
        self._hours = itertools.count()
        self.endings: Counter[str] = Counter()
        self.orphans = 0

    def step(self) -> None:
        table = find_maintained([self._stream.spec], self._stream.spec.table.identifier)
        catalog = load_catalog(None)
        for outcome in maintain(lambda: self._spark, catalog, table, now_ms=time.time_ns() // 1_000_000):
            self.endings[f"{outcome.action} {outcome.ending}"] += 1
            assert outcome.ending is not Ending.FAILED, outcome.sentence
        make_old(table_folder(self._stream))
        later = time.time_ns() // 1_000_000 + next(self._hours) * HOUR_MS
        report = clean_orphans(catalog, table, now_ms=later)
        assert report.refused is None
        self.orphans += report.deleted


def table_folder(stream: Any) -> Path:
    return Path(stream.table().location().removeprefix("file://"))


def make_old(folder: Path) -> None:
    """Date the files to 1970: older than any age that guards a file."""
    for name in ("data", "metadata"):
        for file in (folder / name).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # compacted or expired meanwhile
                os.utime(file, (0, 0))


@contextmanager
def supervised_writer(stream: Any) -> Iterator[None]:
    supervisor = Supervisor(SupervisedStream(Program(stream.name, stream.streams, APPLICATION)))
    try:
        with forever(supervisor.step, every_s=0.5):
            yield
    finally:
        LocalLauncher(stream.name).stop(force=True)


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    "seconds",
    [15, pytest.param(1200, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_continuous_maintenance_removes_nothing_that_writer_and_readers_need(
    spark: Any, in_sparks_catalog: Any, event: Callable[[int], bytes], eventually: Any, seconds: int
):
    stream = in_sparks_catalog
    stream.declare(EAGER.replace("KEEP", "1s" if seconds < 60 else "60s"))  # reads take longer the larger the table
    load, reader, maintainer = Load(stream, event), Reader(stream), Maintainer(stream, spark)
    with supervised_writer(stream):
        with forever(load.step, every_s=ROUND_S):
            eventually(lambda: stream.has_rows(1))
            until = time.monotonic() + seconds
            with forever(reader.step, every_s=0.01):
                while time.monotonic() < until or not done(maintainer):
                    maintainer.step()
        stray = table_folder(stream) / "data" / "stray.parquet"
        stray.touch()
        while stray.exists():  # and with it what lost races left: found once, a commit, and found again
            load.step()
            eventually(lambda: stream.has_rows(load.sent))
            maintainer.step()
        exits = read_exits(run_folder(stream.name))
    print(f"{load.sent} records, {reader.reads} reads, {dict(maintainer.endings)}, {maintainer.orphans} orphans")
    assert not exits, "the writer ended"
    assert reader.reads > 0
    assert not {path for path in referenced_paths(stream.table()) if not Path(path).exists()}
    check_exact(stream, range(load.sent))


def done(maintainer: Maintainer) -> bool:
    """Whether each action had its turn."""
    return all(maintainer.endings[f"{action} done"] for action in ("compaction", "manifests", "expiry"))
