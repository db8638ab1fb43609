"""Orphan cleanup on real tables: two runs delete every orphan, and no file that is or will be needed."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile

from frazil.backfill.commit import BackfillCommitter
from frazil.backfill.request import parse_request
from frazil.cli.main import frazil
from frazil.commit.backfill_records import BackfillMarker
from frazil.commit.journal import NO_DEAD_LETTERS, Journal
from frazil.commit.marker import BatchKey
from frazil.commit.settle import settle
from frazil.commit.snapshot import SnapshotWriter
from frazil.errors import AccessDenied, SpecError
from frazil.ingest.contract import RangeProgress
from frazil.maintenance import orphan_cleanup, orphan_references
from frazil.maintenance.orphan_cleanup import OrphanReport, clean_orphans
from frazil.maintenance.outcomes import Ending, read_outcomes
from frazil.maintenance.tables import MaintainedTable, find_maintained
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from frazil.table.storage import LocalStore
from tests.made_batches import MadeStream

DAY_S = 86_400
HOUR_MS = 3_600_000


def declared(name: str = "made", **orphans: object) -> StreamSpec:
    return StreamSpec.model_validate(
        {
            "name": name,
            "source": {"topics": [name], "bootstrap-servers": "127.0.0.1:1"},
            "table": "demo.made",
            "schema": {"at": "timestamptz", "note": "string"},
            "event-time": "at",
            "maintenance": {"orphans": {"max-share": 100, **orphans}},
        }
    )


@dataclass
class World:
    """A stream's tables, next to which files are laid; the time is moved by hand, in hours."""

    settings: dict[str, object] = field(default_factory=dict)
    hours: float = 0.0
    read: int = 0

    @cached_property
    def made(self) -> MadeStream:
        return MadeStream(declared(), time.time_ns() // 1_000_000, partitions=1)

    @cached_property
    def catalog(self) -> Catalog:
        return load_catalog(None)

    def table(self, identifier: str = "demo.made") -> Table:
        return self.catalog.load_table(identifier)

    @property
    def root(self) -> Path:
        return Path(self.table().location().removeprefix("file://"))

    def commit(self, rejected: Iterable[int] = ()) -> None:
        """Commit two records."""
        start, self.read = self.read, self.read + 2
        self.made.land({0: (start, self.read)}, rejected={0: [start + r for r in rejected]})

    def stray(self, path: str, *, text: str = "nobody's", days: float = 5) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return aged(file, days=days)

    def clean(self, table: str = "demo.made", *, dry_run: bool = False) -> OrphanReport:
        now_ms = time.time_ns() // 1_000_000 + round(self.hours * HOUR_MS)
        return clean_orphans(self.catalog, self.maintained(table), now_ms=now_ms, dry_run=dry_run)

    def maintained(self, table: str = "demo.made") -> MaintainedTable:
        return find_maintained([declared(**self.settings)], table)

    def twice(self, table: str = "demo.made") -> OrphanReport:
        """Two runs, between which the table commits and an hour passes."""
        self.clean(table)
        self.hours += 1
        self.commit(rejected=[0])
        return self.clean(table)

    def age(self) -> None:
        """Everything that is present was written five days ago."""
        for file in self.root.parent.rglob("*.*"):
            if file.is_file() and "_maintenance" not in file.parts:
                aged(file)

    def files(self) -> set[Path]:
        return {f for f in self.root.parent.rglob("*") if f.is_file() and "_maintenance" not in f.parts}


def aged(file: Path, *, days: float = 5) -> Path:
    os.utime(file, (time.time() - days * DAY_S,) * 2)
    return file


def check_whole(table: Table) -> int:
    """Every snapshot can be read; the rows of all of them together."""
    return sum(table.scan(snapshot_id=s.snapshot_id).to_arrow().num_rows for s in table.metadata.snapshots)


@pytest.fixture
def world(frazil_home: Path) -> World:  # noqa: ARG001
    made = World()
    for _ in range(3):
        made.commit(rejected=[0])
    return made


STRAYS = [
    "data/made/00000001/00000001/00009-1-abandoned.parquet",
    "data/made/backfill-0123-1/00000001/00000001/00000-0-ended.parquet",
    "data/forgotten/00000007/00000002/00000-0-x.parquet",
    "data/at_day=2013-12-30/00000-7-0a-00001.parquet",
    "data/00000000.puffin",
    "metadata/snap-1-0-lost.avro",
    "metadata/torn-m0.avro",
    "metadata/00009-torn.metadata.json",
    "README.txt",
]


@pytest.mark.parametrize("table", ["demo.made", "demo.made_dead_letters"])
def test_orphan_files_of_every_kind_are_deleted_in_the_second_run(world: World, table: str):
    folder = world.table(table).location().removeprefix("file://")
    strays = [world.stray(f"{folder}/{path}") for path in STRAYS]
    hidden = [world.stray(f"{folder}/{path}") for path in ("_SUCCESS", "data/.tmp/x.parquet", "_frazil/made/x.json")]
    before = world.files()

    first = world.clean(table)
    assert (first.candidates, first.deleted, first.waiting) == (len(strays), 0, len(strays))
    assert world.files() == before
    world.hours += 0.9
    world.commit(rejected=[0])
    assert world.clean(table).deleted == 0
    world.hours += 0.1
    done = world.clean(table)
    assert (done.deleted, done.deleted_bytes) == (len(strays), len(strays) * len("nobody's"))
    assert before - world.files() == set(strays)
    assert all(file.exists() for file in hidden)
    assert done.listed == done.referenced + done.registered + done.young + done.candidates
    assert check_whole(world.table(table)) > 0


def test_recent_orphan_files_wait_and_so_do_those_found_before_the_tables_next_commit(world: World):
    young, old = world.stray("data/young.parquet", days=2), world.stray("data/old.parquet")
    world.clean()
    world.hours += 2
    idle = world.clean()
    assert (idle.young, idle.waiting, idle.deleted) == (idle.young, 1, 0)
    assert "after the table's next commit" in idle.sentence
    (nothing,) = read_outcomes(world.made.tables.main.refresh())
    assert (nothing.ending, nothing.numbers["files-removed"]) == (Ending.DONE, 0), "a run is not told from no run"
    assert "1 wait for a run" in nothing.sentence
    world.commit()
    assert world.clean().deleted == 1
    found_nothing, past = read_outcomes(world.made.tables.main.refresh())
    assert found_nothing == nothing
    assert (past.action, past.ending, past.numbers) == ("orphans", Ending.DONE, {"files-removed": 1, "bytes": 8})
    assert young.exists()
    assert not old.exists()


def test_a_dry_run_of_the_orphan_cleanup_records_and_deletes_nothing(world: World):
    stray = world.stray("data/stray.parquet")
    for _ in range(3):
        shown = world.clean(dry_run=True)
        world.hours += 2
        world.commit()
    assert (shown.candidates, shown.examples) == (1, (f"file://{stray}",))
    assert world.clean().deleted == 0
    assert stray.exists()


def test_a_debug_log_lists_the_deleted_files(world: World, caplog: pytest.LogCaptureFixture):
    stray = world.stray("data/stray.parquet")
    with caplog.at_level("DEBUG", "frazil.maintenance"):
        world.clean()
        assert str(stray) not in caplog.text
        world.hours += 2
        world.commit()
        world.clean()
    assert (stray.exists(), f"file://{stray}" in caplog.text) == (False, True)


def test_an_unreadable_orphan_record_makes_the_next_run_a_first_run(world: World):
    stray = world.stray("data/stray.parquet")
    world.clean()
    (world.root / "_frazil/_maintenance/orphans.json.gz").write_bytes(b"torn")
    world.hours += 2
    world.commit()
    assert world.clean().deleted == 0
    assert world.twice().deleted == 1
    assert not stray.exists()


# What must stay


def progress(start: int, end: int, topic: str = "made", partition: int = 0) -> tuple[RangeProgress, ...]:
    return (RangeProgress(topic, partition, start, end, end - start - 1, 1, None),)


def journaled(made: MadeStream, start: int) -> Journal:
    return made.stage(progress(start, start + 2, made.topic), {0: [start]}, {0: [start + 1]})


def staged_chunk(world: World, committer: BackfillCommitter, start: int) -> Journal:
    """A chunk of a backfill of its own partition, not journaled."""
    made, key, table = world.made, committer.next_key(), world.table()
    own = MadeStream(made.spec.model_copy(update={"name": committer.own_tables.stream}), made.now_ms, partitions=1)
    files = own.write(table, key, "main", {5: [start]})
    files += own.write(world.table("demo.made_dead_letters"), key, "dead-letters", {5: [start + 1]})
    return Journal(
        stream="made",
        key=key,
        table_uuid=str(table.metadata.table_uuid),
        created_at_ms=made.now_ms,
        source=made.source,
        progress=progress(start, start + 2, partition=5),
        files=files,
        newest_dead_letters=NO_DEAD_LETTERS,
        idle=frozenset(),
        offsets_after={},
    )


def begin_backfill(world: World) -> BackfillCommitter:
    committer = BackfillCommitter.begin(world.made.tables, parse_request({"stream": "made"}))
    committer.commit(staged_chunk(world, committer, 0), planned=3)
    return committer


def test_no_file_is_removed_that_a_snapshot_ref_journal_staged_batch_or_backfill_needs(world: World):
    """The journals are of a stream that is no longer declared, whose writer is dead."""
    gone = MadeStream(declared("gone"), world.made.now_ms, partitions=1)
    gone.begin()
    waiting = journaled(gone, 0)
    table = world.table()
    prepared = SnapshotWriter(waiting.staged_for("main"))
    prepared.prepare(table, summary={}, now_ms=world.made.now_ms)
    Path(prepared.attempts[0].snapshot.manifest_list.removeprefix("file://")).unlink()
    staged = gone.write(table, BatchKey(1, 2), "main", {0: [2]})
    tagged = table.current_snapshot()
    assert tagged is not None
    table.manage_snapshots().create_tag(tagged.snapshot_id, "kept").create_branch(tagged.snapshot_id, "aside").commit()
    world.table().append(table.scan(limit=1).to_arrow(), branch="aside")
    world.table().overwrite(world.table().scan().to_arrow())
    committer = begin_backfill(world)
    chunk = staged_chunk(world, committer, 2)
    stats = world.stray("metadata/20-stats.puffin")
    with world.table().update_statistics() as update:
        update.set_statistics(StatisticsFile.model_validate({
            "snapshot-id": tagged.snapshot_id, "statistics-path": f"file://{stats}", "file-size-in-bytes": 1,
            "file-footer-size-in-bytes": 1, "blob-metadata": [],
        }))  # fmt: skip
    world.stray("metadata/version-hint.text")
    world.age()
    before = world.files()

    for identifier in ("demo.made", "demo.made_dead_letters"):
        report = world.twice(identifier)
        assert (report.refused, report.candidates, report.deleted) == (None, 0, 0)
        assert report.registered >= 2
    assert before <= world.files()

    committer.commit(chunk, planned=3)
    settle(gone.tables, gone.begin())
    names = set(world.table().scan().to_arrow()["kafka_topic"].to_pylist())
    assert {"made", "gone"} <= names
    assert check_whole(world.table()) > 0
    # By now the batch that was staged and not journaled is orphaned, and its stream's next start removes it.
    assert not any(Path(file.path.removeprefix("file://")).exists() for file in staged)


def test_files_staged_by_a_backfill_are_orphans_only_after_it_ended(world: World):
    committer = begin_backfill(world)
    left = staged_chunk(world, committer, 2)
    world.age()
    assert world.twice().registered >= 1
    _end(world, committer.backfill)
    assert world.twice().deleted == len(left.staged_for("main"))


def _end(world: World, committer: BackfillMarker) -> None:
    """End a backfill as abandoning does, and die before the files are removed."""
    table = world.table()
    ended = json.loads(table.properties["frazil.backfill.made"]) | {"state": "abandoned"}
    with table.transaction() as change:
        change.set_properties({"frazil.backfill.made": json.dumps(ended)})
    assert committer.is_open


def test_a_manifest_of_an_abandoned_commit_attempt_is_deleted(world: World):
    journal = journaled(world.made, world.read)
    other = SnapshotWriter(journal.staged_for("main"))
    other.prepare(world.table(), summary={}, now_ms=world.made.now_ms)
    assert world.made.committer is not None
    world.age()
    assert world.clean().registered >= 2
    world.made.committer.commit(journal)
    world.read += 2
    assert world.twice().deleted == 2
    assert not Path(other.manifests[0].manifest_path.removeprefix("file://")).exists()


# Races


def meanwhile(monkeypatch: pytest.MonkeyPatch, operation: Callable[[], Any], *, after: str) -> None:
    """Something happens once, right after the store answered."""
    operations = [operation]
    real = getattr(LocalStore, after)

    def answer(self: LocalStore, path: str) -> Any:
        found = real(self, path)
        if "_maintenance" not in path and operations:
            operations.pop()()
        return found

    monkeypatch.setattr(LocalStore, after, answer)


def test_files_committed_during_the_listing_are_not_deleted(world: World, monkeypatch: pytest.MonkeyPatch):
    journal = journaled(world.made, world.read)
    assert world.made.committer is not None
    world.age()
    committer = world.made.committer
    meanwhile(monkeypatch, lambda: committer.commit(journal), after="list_files")
    report = world.clean()
    assert (report.refused, report.candidates) == (None, 0)
    assert check_whole(world.table()) > 0


def test_a_file_that_is_referenced_right_before_its_deletion_is_kept(world: World, monkeypatch: pytest.MonkeyPatch):
    """An append by hand of a file that had lain there for days."""
    live = next(iter(world.table().scan().plan_files())).file.file_path.removeprefix("file://")
    imported = world.root / "data" / "imported.parquet"
    shutil.copy(live, imported)
    aged(imported)
    other = world.stray("data/stray.parquet")
    world.clean()
    world.hours += 1
    world.commit()
    real = orphan_cleanup.find_deletable

    def import_first(*args: Any, **kwargs: Any) -> Any:
        world.table().add_files([f"file://{imported}"], check_duplicate_files=False)
        return real(*args, **kwargs)

    monkeypatch.setattr(orphan_cleanup, "find_deletable", import_first)
    assert world.clean().deleted == 1
    assert (imported.exists(), other.exists()) == (True, False)


def test_references_are_read_again_if_a_snapshot_expires_during_the_read(world: World, monkeypatch: pytest.MonkeyPatch):
    stray = world.stray("data/stray.parquet")
    lists = [s.manifest_list for s in world.table().metadata.snapshots]
    real, failures = orphan_references._list_files, [FileNotFoundError(lists[0])]

    def vanishing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args)

    monkeypatch.setattr(orphan_references, "_list_files", vanishing)
    assert world.clean().candidates == 1
    failures += [FileNotFoundError(lists[0])] * 99
    assert "the next run tries again" in str(world.clean().refused)
    assert stray.exists()


def test_a_failed_deletion_batch_ends_the_cleanup_with_a_report_of_deleted_files(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    strays = [world.stray(f"data/stray-{n}.parquet") for n in range(6)]
    world.clean()
    world.hours += 1
    world.commit()
    real = LocalStore.delete_each

    def refused(self: LocalStore, paths: Iterable[str]) -> dict[str, Any]:
        of = list(paths)
        no = {path: AccessDenied(f"{path}: no") for path in of if path.endswith("3.parquet")}
        return no | real(self, [path for path in of if path not in no])

    monkeypatch.setattr(orphan_cleanup, "FILES_PER_DELETION", 2)
    monkeypatch.setattr(LocalStore, "delete_each", refused)
    report = world.clean()
    assert (report.deleted, report.waiting) == (3, 3)
    assert "AccessDenied" in str(report.refused)
    assert "stopped" in report.sentence
    assert [file.exists() for file in strays] == [False] * 3 + [True] * 3
    monkeypatch.undo()
    monkeypatch.setenv("FRAZIL_HOME", str(world.root.parents[2]))
    assert world.clean().deleted == 3


# Refusals


def refused(world: World, **settings: object) -> str:
    """The reason; nothing is deleted, however often it runs."""
    world.settings = settings
    before = world.files()
    world.clean()
    world.hours += 1
    report = world.clean()
    assert before == world.files()
    assert report.deleted == 0
    assert report.refused
    assert report.refused in report.sentence
    return report.refused


def test_more_files_than_a_limit_are_refused(world: World):
    assert "max-listed" in refused(world, **{"max-listed": 5})


def test_orphans_above_the_maximum_share_of_files_are_refused(world: World):
    for n in range(20):
        world.stray(f"data/stray-{n}.parquet")
    assert "20 of" in refused(world, **{"max-share": 20})


def test_orphans_above_the_maximum_share_of_bytes_are_refused(world: World):
    world.stray("data/stray.parquet", text="x" * 10_000_000)
    assert "bytes) are orphans" in refused(world, **{"max-share": 20})


def test_a_host_whose_clock_differs_from_the_storage_is_refused(world: World):
    world.stray("data/stray.parquet", days=0)
    world.hours = 100 * 24
    assert "clock" in refused(world)


def test_a_disabled_cleanup_shows_files_and_deletes_none(world: World):
    world.stray("data/stray.parquet")
    assert "off" in refused(world, enabled=False)
    assert world.clean(dry_run=True).candidates == 1


def test_a_listing_without_the_live_files_is_refused(world: World, monkeypatch: pytest.MonkeyPatch):
    """Another folder's listing, as a wrong path, bucket or mount would give."""
    world.stray("data/stray.parquet")
    real = LocalStore.list_files
    monkeypatch.setattr(
        LocalStore,
        "list_files",
        lambda s, f: [i for i in real(s, f) if "/data/made/" not in i.path or "json" in i.path],
    )
    assert "live files are not in the listing" in refused(world)


def test_an_orphan_with_the_name_of_a_referenced_file_is_refused(world: World):
    live = next(iter(world.table().scan().plan_files())).file.file_path.removeprefix("file://")
    copy = world.root / "backup" / Path(live).name
    copy.parent.mkdir()
    shutil.copy(live, copy)
    aged(copy)
    assert str(copy) in refused(world)


def test_a_marker_of_a_newer_frazil_is_refused(world: World):
    world.stray("data/stray.parquet")
    with world.table().transaction() as change:
        change.set_properties({"frazil.stream.newer": '{"format": 99}'})
    assert "format 99" in refused(world)


@pytest.mark.parametrize("said", ["false", "FALSE", "no"])
def test_orphan_cleanup_refuses_a_table_with_gc_disabled(world: World, said: str):
    """Such a table may be registered in a second catalog: the property is its only protection."""
    stray = world.stray("data/at_day=2020-01-01/00000-1-of-the-clone.parquet")
    world.clean()
    world.hours += 1
    world.commit()
    with world.table().transaction() as change:
        change.set_properties({"gc.enabled": said})
    assert "gc.enabled=false" in refused(world)
    assert "gc.enabled=false" in (world.clean(dry_run=True).refused or "")
    assert stray.exists()


def test_cleaning_a_missing_table_is_an_error(frazil_home: Path):  # noqa: ARG001
    with pytest.raises(SpecError, match="does not exist"):
        World().clean()


def make_table(world: World, name: str, location: str | None = None, **properties: str) -> Table:
    schema = pa.schema([pa.field("note", pa.string())])
    made = world.catalog.create_table(f"demo.{name}", schema, location=location, properties=properties)
    made.append(pa.Table.from_pylist([{"note": name}], schema=schema))
    return world.catalog.load_table(f"demo.{name}")


def test_orphan_cleanup_keeps_files_of_tables_inside_the_tables_folder(world: World):
    """One table's location is below this table's, and another table only keeps its data there."""
    make_table(world, "inner", f"file://{world.root}/inner")
    make_table(world, "guest", **{"write.data.path": f"file://{world.root}/guests"})
    stray, theirs = world.stray("data/stray.parquet"), world.stray("inner/data/their-own-affair.parquet")
    world.age()
    assert world.twice().deleted == 1
    assert (stray.exists(), theirs.exists()) == (False, True)
    assert [check_whole(world.catalog.load_table(f"demo.{name}")) for name in ("inner", "guest")] == [1, 1]


def test_orphan_cleanup_is_refused_if_an_unregistered_table_is_in_the_folder(world: World):
    make_table(world, "inner", f"file://{world.root}/inner")
    world.catalog.drop_table("demo.inner")
    world.age()
    assert "another table's files are in this table's folder" in refused(world)


@pytest.mark.parametrize("whose", ["data", "metadata"])
def test_a_folder_that_two_tables_share_is_refused(world: World, whose: str):
    make_table(world, "sharing", **{f"write.{whose}.path": f"file://{world.root}/{whose}"})
    world.age()
    assert "shared with table demo.sharing" in refused(world)


def test_the_metadata_of_another_table_in_the_same_folder_is_refused(world: World):
    """Two catalogs may cause this; a recreated table looks the same."""
    other = make_table(world, "other")
    for file in Path(other.metadata_location.removeprefix("file://")).parent.glob("*"):
        shutil.move(file, world.root / "metadata")
    world.catalog.drop_table("demo.other")
    world.age()
    assert "metadata of another table" in refused(world)


def test_a_data_path_that_holds_the_table_itself_is_refused(world: World):
    with world.table().transaction() as change:
        change.set_properties({"write.data.path": f"file://{world.root.parent}/"})
    world.age()
    assert "holds the table's own location" in refused(world)


def test_folders_outside_of_the_location_are_cleaned_too(world: World, tmp_path: Path):
    with world.table().transaction() as change:
        change.set_properties(
            {"write.data.path": f"file:{tmp_path}/far/data", "write.metadata.path": f"{tmp_path}/far/m"}
        )
    world.made.tables.main.forget()
    world.commit()
    strays = [aged(path) for path in (tmp_path / "far/data/x.parquet", tmp_path / "far/m/x.avro") if _write(path)]
    near = world.stray("data/stray.parquet")
    world.age()
    assert world.twice().deleted == 3
    assert not any(file.exists() for file in (*strays, near))
    assert check_whole(world.table()) > 0


def _write(path: Path) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_text("nobody's") > 0


def test_a_file_behind_a_symbolic_link_is_known_by_its_real_path(world: World, tmp_path: Path):
    """The location leads there by a link, and by another form of `file:`; a file was added by the real path."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    table = make_table(world, "linked", f"file:{link}//linked/")
    added = real / "linked/data/added.parquet"
    shutil.copy(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file:"), added)
    table.add_files([str(added)])
    stray = world.stray(f"{real}/linked/data/stray.parquet")
    for file in real.rglob("*.*"):
        aged(file)
    linked = replace(world.maintained(), identifier="demo.linked")
    for now_ms in (time.time_ns() // 1_000_000 + hours * HOUR_MS for hours in (0, 1)):
        table.append(table.scan(limit=1).to_arrow())
        report = clean_orphans(world.catalog, linked, now_ms=now_ms)
    assert (report.refused, report.deleted) == (None, 1)
    assert (added.exists(), stray.exists()) == (True, False)
    assert check_whole(world.catalog.load_table("demo.linked")) > 0


# The command


def command(tmp_path: Path, *arguments: str) -> Any:
    streams = tmp_path / "streams"
    streams.mkdir(exist_ok=True)
    (streams / "made.yaml").write_text(
        'name: made\nsource: {topics: [made], bootstrap-servers: "127.0.0.1:1"}\ntable: demo.made\n'
        "schema: {at: timestamptz, note: string}\nevent-time: at\nmaintenance: {orphans: {max-share: 100}}\n"
    )
    return CliRunner().invoke(frazil, ["orphans", "demo.made", "--streams", str(streams), *arguments])


def test_orphan_cleanup_lists_files_and_deletes_them_only_if_allowed(world: World, tmp_path: Path):
    stray = world.stray("data/stray.parquet")
    shown = command(tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "1 orphan of" in shown.stdout
    assert str(stray) in shown.stdout
    reported = json.loads(command(tmp_path, "--delete", "--json").stdout)
    assert (reported["candidates"], reported["deleted"], reported["waiting"], reported["refused"]) == (1, 0, 1, None)


def test_the_command_exits_with_1_if_the_cleanup_is_refused(world: World, tmp_path: Path):
    make_table(world, "sharing", **{"write.data.path": f"file://{world.root}/data"})
    done = command(tmp_path, "--delete")
    assert done.exit_code == 1
    assert "shared with table demo.sharing" in done.stdout
