"""After any sequence of events, no live file is missing, and every orphan file is finally deleted."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate

from frazil.commit.journal import Journal
from frazil.commit.settle import settle
from frazil.commit.snapshot import SnapshotWriter
from frazil.ingest.contract import RangeProgress
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.tables import find_maintained
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from tests.made_batches import MadeStream

HOUR_MS = 3_600_000
MOSTLY = st.sampled_from([True, True, True, False])
SPEC = StreamSpec.model_validate(
    {
        "name": "made",
        "source": {"topics": ["made"], "bootstrap-servers": "127.0.0.1:1"},
        "table": "demo.made",
        "schema": {"at": "timestamptz"},
        "event-time": "at",
        "maintenance": {"orphans": {"max-share": 100}},
    }
)
TABLES = ("demo.made", "demo.made_dead_letters")


def needed(table: Table) -> Iterator[str]:
    """Independently of the code under test: PyIceberg's own walk through all that a table has."""
    yield from (table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log))
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


class CleanedTable(RuleBasedStateMachine):
    """One stream whose writer dies and comes back, next to compaction, expiry and cleanup."""

    @initialize()
    def begin(self) -> None:
        self.home = tempfile.mkdtemp()
        self.before = os.environ.get("FRAZIL_HOME")
        os.environ["FRAZIL_HOME"] = self.home
        self.made = MadeStream(SPEC, time.time_ns() // 1_000_000, partitions=1)
        self.made.begin()
        self.catalog = load_catalog(None)
        self.hours, self.serial, self.read = 0.0, 0, 0
        self.waiting: Journal | None = None
        # Where most can go wrong: a batch waits, and a cleanup has seen it.
        self.stage(journal=True, manifests=True)
        self.age()
        self.clean()

    @rule(journal=MOSTLY, manifests=st.booleans())
    def stage(self, journal: bool, manifests: bool) -> None:
        """A batch of two records, one of them a dead letter; its writer may die at any of its steps."""
        if self.waiting is not None:
            return
        self.made.committer = self.made.committer or self.restart()
        start = self.read
        progress = (RangeProgress("made", 0, start, start + 2, 1, 1, None),)
        staged = self.made.stage(progress, {0: [start]}, {0: [start + 1]})
        if manifests:
            SnapshotWriter(staged.staged_for("main")).prepare(self.table(), summary={}, now_ms=self.made.now_ms)
        if journal:
            self.waiting = staged
        else:
            local(self.made.tables.journals.path(staged.key)).unlink()
            self.made.committer = None

    @precondition(lambda self: self.waiting is not None)
    @rule()
    def commit(self) -> None:
        assert self.waiting is not None
        if self.made.committer is None:
            self.restart()
        else:
            self.made.committer.commit(self.waiting)
        self.read = self.waiting.progress[0].end
        self.waiting = None

    @precondition(lambda self: self.waiting is not None)
    @rule()
    def die(self) -> None:
        """After the journal: the next start commits it."""
        self.made.committer = None

    def restart(self):
        committer = self.made.begin()
        settle(self.made.tables, committer)
        return committer

    def compact(self) -> None:
        table = self.table()
        if table.current_snapshot():
            table.overwrite(table.scan().to_arrow())

    @rule(keep=st.integers(1, 3))
    def expire_and_die(self, keep: int) -> None:
        """Expire snapshots, then die. Files that only these snapshots needed are now orphans."""
        for name in TABLES:
            table = self.table(name)
            old = [s.snapshot_id for s in table.metadata.snapshots][:-keep]
            if old:
                self.catalog.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=old),))

    @rule(folder=st.sampled_from(["data", "metadata", "data/made/00000001/00000001", "."]))
    def stray(self, folder: str) -> None:
        self.serial += 1
        path = local(self.table().location()) / folder / f"stray-{self.serial}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("nobody's")

    def age(self) -> None:
        """Make all present files older than the limit."""
        for file in self.files():
            os.utime(file, (time.time() - 5 * 86_400,) * 2)

    @rule(hours=st.sampled_from([1.0, 1.0, 0.5]), old=MOSTLY, compacted=MOSTLY)
    def check_again(self, hours: float, old: bool, compacted: bool) -> None:
        """Some time after the last cleanup, in which the table may have committed, the next one."""
        self.hours = min(self.hours + hours, 20)
        if old:
            self.age()
        if compacted:
            self.compact()
        self.clean()

    def clean(self) -> None:
        now_ms = time.time_ns() // 1_000_000 + round(self.hours * HOUR_MS)
        reports = [clean_orphans(self.catalog, find_maintained([SPEC], name), now_ms=now_ms) for name in TABLES]
        assert [report.refused for report in reports] == [None, None]
        paths = chain.from_iterable(needed(self.table(name)) for name in TABLES)
        staged = [f.path for f in self.waiting.files] if self.waiting else []
        assert [path for path in (*paths, *staged) if not local(path).exists()] == []

    def teardown(self) -> None:
        if not hasattr(self, "home"):
            return
        try:
            self.end_well()
        finally:
            shutil.rmtree(self.home)
            os.environ.pop("FRAZIL_HOME")
            if self.before:
                os.environ["FRAZIL_HOME"] = self.before

    def end_well(self) -> None:
        """Start the writer again and let it continue. Two cleanups run, with time and a commit between them."""
        if self.waiting is not None:
            self.commit()
        self.made.committer = None
        for self.hours in (21, 22):
            self.stage(journal=True, manifests=False)
            self.commit()
            self.age()
            self.clean()
        left = set(self.files()) - {local(path) for name in TABLES for path in needed(self.table(name))}
        assert {path for path in left if not path.is_relative_to(local(self.table().location()) / "_frazil")} == set()
        count = self.table().scan().to_arrow().num_rows, self.table(TABLES[1]).scan().to_arrow().num_rows
        assert count == (self.read // 2, self.read // 2)

    def table(self, name: str = TABLES[0]) -> Table:
        return self.catalog.load_table(name)

    def files(self) -> list[Path]:
        return [f for f in Path(self.home, "warehouse").rglob("*") if f.is_file() and "_maintenance" not in f.parts]


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
class TestCleanedTable(CleanedTable.TestCase):
    # A step takes a tenth of a second: shrinking would take minutes.
    settings = settings(max_examples=6, stateful_step_count=10, phases=[Phase.reuse, Phase.generate])
