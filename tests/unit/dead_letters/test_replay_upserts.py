"""Replayed dead letters of an upsert stream are merged in log order, once, wherever the replay is killed."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.exceptions import CommitFailedException

from frazil.audit.findings import FindingKind
from frazil.audit.upserts import audit_upserts
from frazil.backfill.commit import BackfillCommitter, abandon
from frazil.backfill.routes import staged_files
from frazil.backfill.rules import check_declared_mode, check_no_open_windows
from frazil.cli.main import frazil
from frazil.commit import marker_changes
from frazil.commit.backfill_records import BackfillState, branch_name, committed_chunks, read_backfill
from frazil.commit.committer import Committer
from frazil.commit.history import WINDOWS_KEY
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey
from frazil.commit.merging import UPSERT_MODE, MergeConfig, MergeWriter, build_merge_rules
from frazil.commit.open_streams import open_stream
from frazil.commit.reset_plan import read_state_before_reset
from frazil.commit.staging_targets import target_table
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folder, sweep
from frazil.dead_letters import replay as replaying
from frazil.dead_letters.replay import replay
from frazil.dead_letters.selection import Selection
from frazil.errors import CommitUnavailable, SpecError, StaleBatch
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT
from frazil.ingest.contract import RangeProgress, StagedFile
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.maintenance.orphans import UndecidedFiles
from frazil.offsets.spans import SourceIdentity
from frazil.spec.model import StreamSpec
from frazil.status.stream import read_stream_state
from frazil.table.catalogs import load_catalog
from frazil.table.tables import data_location, ensure_table
from tests.unit.dead_letters.test_replay import Killed, check_none_is_discarded_and_replayed, in_turns, is_killed

SOURCE = SourceIdentity("cluster", {"events": "topic"})
BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
DECLARED = """\
mode: upsert
key: [id]
order-by: at
delete: {column: note, values: [gone]}
"""

Change = tuple[int, int, str]
"""A key, the minute by which its changes are ordered, and a note."""
LETTERS: dict[int, Change | None] = {
    0: (1, 0, "replaced by a later record"),
    2: (2, 5, "newer than a record after it"),
    4: (3, 0, "of a key that nothing else has"),
    6: (4, 9, "gone"),
    7: None,
    9: (5, 1, "equal to a record after it"),
}
"""Values by offset; None for one that no declaration accepts."""
RECORDS: dict[int, Change] = {
    1: (1, 1, "first"),
    3: (2, 4, "second"),
    5: (4, 8, "fourth"),
    8: (6, 0, "sixth"),
    10: (5, 1, "fifth"),
}
READ = 11
RIGHT = {1: "first", 2: "newer than a record after it", 3: "of a key that nothing else has", 5: "fifth", 6: "sixth"}
"""The table of a stream without the mistake."""


def at(minute: int) -> datetime:
    return BEGAN + timedelta(minutes=minute)


@dataclasses.dataclass
class World:
    """An upsert stream with dead letters, like the append stream of `tests/unit/dead_letters/test_replay.py`."""

    stream: Any
    epoch: int
    batch: int = 0
    read: int = 0
    source: SourceIdentity = SOURCE

    @property
    def tables(self) -> StreamTables:
        spec: StreamSpec = self.stream.spec
        merging = MergeConfig(lambda table: build_merge_rules(spec, table))
        return dataclasses.replace(open_stream(spec).tables, merging=merging)

    def write(self, records: dict[int, Change], dead_letters: dict[int, Change | None], *, read: int) -> None:
        """Commit a batch of the writer, up to an offset."""
        self.batch += 1
        tables, key = self.tables, BatchKey(self.epoch, self.batch)
        committer = Committer(tables, self.epoch)
        main, dead = tables.main.current(), tables.dead_letters.current()
        changes = UPSERT_MODE.staging_target(target_table(main, folder=batch_folder(main, "events", key)), ("id",))
        files = [
            dataclasses.replace(file, content="changes")
            for file in written(changes, "main", main, [_change(n, of) for n, of in records.items()])
        ]
        target = target_table(dead, folder=batch_folder(dead, "events", key))
        files += written(target, "dead-letters", dead, [self._dead_letter(n, of) for n, of in dead_letters.items()])
        journal = Journal(
            stream="events",
            key=key,
            table_uuid=str(main.metadata.table_uuid),
            created_at_ms=tables.clock_ms(),
            source=self.source,
            progress=(RangeProgress("events", 0, self.read, read, len(records), len(dead_letters), None),),
            files=tuple(files),
            newest_dead_letters=committer.newest_dead_letters(),
            idle=frozenset(),
            offsets_after={("events", 0): read},
        )
        self.read = read
        assert tables.journals.put(journal)
        committer.commit(journal)

    def _dead_letter(self, offset: int, of: Change | None) -> dict[str, Any]:
        return {**_dead_letter(offset, of), "topic_id": self.source.topic_ids["events"]}

    def rows(self) -> dict[int, str]:
        found = self.stream.table().scan().to_arrow().to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: row["note"] for row in found}

    def dead_letters(self) -> dict[int, int | None]:
        found = self.stream.table("_dead_letters").scan().to_arrow().to_pylist()
        return {row["kafka_offset"]: row["replays"] for row in found}

    def check_settled(self, rows: dict[int, str] = RIGHT, *, replays: int | None = 1) -> None:
        assert self.rows() == rows
        assert self.dead_letters() == {7: replays}
        tables = self.tables
        for handle in (tables.main, tables.dead_letters):
            table = handle.refresh()
            backfill = read_backfill(table.properties, "events")
            assert backfill is not None
            assert (branch_name("events") in table.metadata.refs, backfill.state) == (False, BackfillState.PUBLISHED)
        self.check_files()
        assert audit_upserts(self.stream.spec, tables).errors == ()

    def check_files(self) -> None:
        """Check that a snapshot needs each file of the backfill branch."""
        table = self.stream.table()
        needed = {
            entry.data_file.file_path
            for snapshot in table.metadata.snapshots
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        }
        assert {path.removeprefix("file://") for path in needed} >= {*self.backfill_files()}

    def backfill_files(self) -> list[str]:
        folder = f"{data_location(self.stream.table())}/events"
        found = [f.path.removeprefix("file://") for f in self.tables.store.list_files(folder)]
        return [path for path in found if "/backfill-" in path]


def written(target: Any, name: Any, table: Any, rows: list[dict[str, Any]]) -> tuple[StagedFile, ...]:
    if not rows:
        return ()
    writer = TableWriter(target, name, io=table.io, file_name=file_namer(0, 0))
    writer.add(pa.Table.from_pylist(rows, schema=writer.layout.arrow_schema))
    return tuple(writer.finish())


def _place(offset: int) -> dict[str, Any]:
    return {"kafka_topic": "events", "kafka_partition": 0, "kafka_offset": offset, "kafka_timestamp": at(offset)}


def _change(offset: int, of: Change) -> dict[str, Any]:
    key, minute, note = of
    kind = DELETE if note == "gone" else UPSERT
    return {"id": key, "at": at(minute), "note": note, **_place(offset), CHANGE: kind, OMITTED_COLUMNS: None}


def _dead_letter(offset: int, of: Change | None) -> dict[str, Any]:
    value = {"id": of[0], "at": at(of[1]).isoformat(), "note": of[2]} if of else {"note": "no key"}
    reason = {"error_class": "MissingField", "error": "it was so then", "rejected_at": at(offset)}
    return {
        **_place(offset),
        **reason,
        "stream": "events",
        "key": None,
        "value": json.dumps(value).encode(),
    }


@pytest.fixture
def partition() -> str:
    return "day(at)"


@pytest.fixture
def live(
    tmp_path: Path,
    declared_stream: Callable[..., Any],
    frazil_home: Path,  # noqa: ARG001
    in_this_process: None,  # noqa: ARG001
    partition: str,
) -> World:
    stream = declared_stream(tmp_path, name="events", topic="events", bootstrap="127.0.0.1:1")
    stream.declare(DECLARED)
    declaration = stream.streams / "events.yaml"
    declaration.write_text(declaration.read_text().replace("day(at)", partition))
    ensure_table(load_catalog(None), stream.spec)
    committer = Committer.take_over(open_stream(stream.spec).tables, source=SOURCE, initial=lambda: {("events", 0): 0})
    world = World(stream, committer.epoch)
    world.write(RECORDS, LETTERS, read=READ)
    assert world.rows() == {1: "first", 2: "second", 4: "fourth", 5: "fifth", 6: "sixth"}
    return world


def test_dead_letters_are_merged_in_their_order_and_landed_or_stale_ones_are_removed(live: World) -> None:
    (done,) = replay(open_stream(live.stream.spec), Selection())
    assert (done.landed, done.failed) == (len(LETTERS) - 1, 1)
    live.check_settled()
    summary = live.stream.table().current_snapshot().summary
    counted = {name: summary[f"frazil.{name}"] for name in ("inserted", "updated", "deleted", "stale")}
    assert counted == {"inserted": "1", "updated": "1", "deleted": "1", "stale": "2"}
    status = ["backfill", "events", "--status", "--streams", str(live.stream.streams)]
    assert re.search(
        "changed rows +1 inserted, 1 updated, 1 deleted, 2 stale\n", CliRunner().invoke(frazil, status).output
    )
    document = json.loads(CliRunner().invoke(frazil, [*status, "--json"]).output)
    assert (document["changes"]["deleted"], document["abandoned-by"]) == (1, "")
    assert json.loads(summary[WINDOWS_KEY]) == {str(int(BEGAN.timestamp()) * 1_000_000): 3}, "complete windows reopen"
    audit = audit_upserts(live.stream.spec, live.tables)
    assert [(one.kind, one.count) for one in audit.findings] == [
        (FindingKind.NOT_COMPARED, len(RECORDS) + len(LETTERS) - 1)
    ]
    (audited,) = audit.partitions
    assert (audited.rows, audited.dead_letters) == (len(RECORDS) + len(LETTERS) - 1, 1), "letters that left are changes"
    status = read_stream_state(live.stream.spec, now_ms=live.tables.clock_ms())
    assert status.changes["inserted"] == len(RECORDS), "those of the batch"
    assert status.commit_epoch == status.epoch
    counts = {name: n for name, n in status.replayed.items() if n}
    assert counts == {**{name: int(n) for name, n in counted.items()}, "failed again": 1}
    assert status.replayed_at_ms == live.stream.table().current_snapshot().timestamp_ms
    (again,) = replay(open_stream(live.stream.spec), Selection())
    assert (again.landed, again.failed) == (0, 1)
    live.check_settled(replays=2)
    table = live.stream.table()
    before = read_stream_state(live.stream.spec, now_ms=live.tables.clock_ms()).replayed_at_ms
    plain = {"frazil.operation": "backfill", "frazil.backfill-stream": live.stream.spec.name, "frazil.inserted": "9"}
    table.append(table.schema().as_arrow().empty_table(), snapshot_properties=plain)
    status = read_stream_state(live.stream.spec, now_ms=live.tables.clock_ms())
    assert status.replayed_at_ms == before, "a plain backfill is no replay"


def interrupted(live: World) -> None:
    """A replay that has staged its dead letters, but published nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackfillCommitter, "publish", _killed)
        with pytest.raises(Killed):
            replay(open_stream(live.stream.spec), Selection())


def _killed(*_: Any, **__: Any) -> None:
    raise Killed


def test_changes_that_wait_for_a_merge_are_in_no_table_and_survive_sweep_and_cleanup(live: World) -> None:
    interrupted(live)
    changes, tables = [path for path in live.backfill_files() if path.endswith(".parquet")], live.tables
    assert len(changes) == 1
    branch = live.stream.table().scan().use_ref(branch_name("events")).to_arrow()
    assert (branch.num_rows, live.rows()[2]) == (0, "second")
    sweep(tables, below_epoch=9)
    assert set(changes) <= {*live.backfill_files()}
    assert UndecidedFiles.of(live.stream.table().properties).holds(changes[0])
    replay(open_stream(live.stream.spec), Selection(reasons=("Other",)))
    live.check_settled()
    assert not UndecidedFiles.of(live.stream.table().properties).holds(changes[0])


def _written(live: World) -> None:
    live.write({11: (3, 3, "third"), 12: (1, 2, "again")}, {}, read=13)


def _compacted(live: World) -> None:
    table = live.stream.table()
    table.overwrite(table.scan().to_arrow())


@pytest.mark.parametrize(
    ("happens", "rows"), [(_written, {**RIGHT, 1: "again", 3: "third"}), (_compacted, RIGHT)], ids=["batch", "rewrite"]
)
def test_a_commit_between_a_merge_and_its_publication_causes_a_second_merge(
    live: World, monkeypatch: pytest.MonkeyPatch, happens: Callable[[World], None], rows: dict[int, str]
) -> None:
    prepared, prepare = [], MergeWriter.prepare

    def overtaken(writer: MergeWriter, *args: Any, **more: Any) -> Any:
        found = prepare(writer, *args, **more)
        prepared.append(found)
        if len(prepared) == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(MergeWriter, "prepare", prepare)
                happens(live)
        return found

    monkeypatch.setattr(MergeWriter, "prepare", overtaken)
    (done,) = replay(open_stream(live.stream.spec), Selection())
    assert (done.landed, len(prepared)) == (len(LETTERS) - 1, 2)
    live.check_settled(rows)


@pytest.mark.parametrize("partition", ["bucket(8, id)"])
def test_dead_letters_untouched_by_the_writer_are_merged_once_however_often_it_commits(
    live: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[int] = []
    prepare = MergeWriter.prepare

    def counted(writer: MergeWriter, *args: Any, **more: Any) -> Any:
        before = set(writer._results)
        found = prepare(writer, *args, **more)
        merged.append(len(set(writer._results) - before))
        if len(merged) < 4:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(MergeWriter, "prepare", prepare)
                live.write({live.read: (4, 10, f"written {live.read}")}, {}, read=live.read + 1)
        return found

    monkeypatch.setattr(MergeWriter, "prepare", counted)
    replay(open_stream(live.stream.spec), Selection())
    first, *others = merged
    assert (first > 2, others) == (True, [1, 1, 1])
    live.check_settled({**RIGHT, 4: "written 13"})


def test_a_replay_that_lost_every_race_suggests_pausing_the_writer(
    live: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise CommitUnavailable("lost every race") from CommitFailedException("main has moved")

    with monkeypatch.context() as patch:
        patch.setattr("frazil.backfill.commit._publish", lost)
        with pytest.raises(CommitUnavailable, match=r"lost every race.*`frazil pause events`, then `frazil dlq replay"):
            replay(open_stream(live.stream.spec), Selection())
    replay(open_stream(live.stream.spec), Selection(reasons=("Other",)))
    live.check_settled()


@pytest.mark.parametrize("staged", [False, True])
def test_a_reset_to_before_a_replay_drops_it_and_the_next_replay_skips_records_read_again(
    live: World, monkeypatch: pytest.MonkeyPatch, staged: bool
) -> None:
    def moved() -> None:
        marker = live.tables.marker()
        assert marker is not None
        target = {("events", 0): 3}
        marker_changes.reset(
            live.tables, target=target, source=marker.source, seen=read_state_before_reset(live.tables)
        )

    copy = replaying._copy_dead_letters
    with monkeypatch.context() as patch:
        if staged:
            interrupted(live)
            moved()
        else:
            patch.setattr(replaying, "_copy_dead_letters", lambda *args: (copy(*args), moved())[0])
        with pytest.raises(
            StaleBatch, match=r"was reset to before dead letters .* Run `frazil dlq replay events` again"
        ):
            replay(open_stream(live.stream.spec), Selection())
    (done,) = replay(open_stream(live.stream.spec), Selection())
    assert (done.interrupted, done.landed, done.failed) == (False, 2, 0)
    assert (live.rows(), live.dead_letters().keys()) == ({**live.rows(), 2: RIGHT[2]}, {4, 6, 7, 9})


def test_dead_letters_at_offsets_that_a_former_topic_had_are_left_out(live: World) -> None:
    """A row of the former topic has a greater offset, and looks newer than such a dead letter."""
    source, target = SourceIdentity("cluster", {"events": "made again"}), {("events", 0): 0}
    marker_changes.reset(live.tables, target=target, source=source, seen=read_state_before_reset(live.tables))
    epoch = Committer.take_over(live.tables, source=source, initial=dict).epoch
    again = World(live.stream, epoch, source=source)
    again.write({}, {1: (2, 9, "below rows"), READ: (8, 0, "above them")}, read=READ + 1)
    dry = ["dlq", "replay", "events", "--dry-run", "--json", "--streams", str(live.stream.streams)]
    said = CliRunner().invoke(frazil, dry)
    assert json.loads(said.stdout)["left-out"] == {"former-topic": 1, "topic-recreated": len(LETTERS)}
    assert (
        "1 dead letter of stream events is left out: the topic was recreated, and offsets of the former topic"
        in said.stderr
    )
    (done,) = replay(open_stream(live.stream.spec), Selection())
    assert (done.landed, done.failed) == (1, 0)
    assert (again.rows()[2], again.rows()[8]) == ("second", "above them")
    assert again.dead_letters().keys() == {*LETTERS, 1}
    assert audit_upserts(live.stream.spec, live.tables).errors == ()


def test_a_staged_upsert_replay_is_reported_as_changes_that_are_not_on_main(live: World) -> None:
    interrupted(live)
    streams = ["--streams", str(live.stream.streams)]
    reported = CliRunner().invoke(frazil, ["backfill", "events", "--status", *streams]).output
    assert re.search(r"state +staged\n.*\nchanges +5 in 1 file", reported)
    reported = CliRunner().invoke(frazil, ["backfill", "events", "--abandon", "--yes", *streams]).output
    assert "has staged 5 changes in 1 chunk; none of them is on main." in reported
    assert live.backfill_files() == []


def test_a_batch_after_a_replay_merges_with_the_replayed_rows(live: World) -> None:
    replay(open_stream(live.stream.spec), Selection())
    live.write({11: (2, 4, "older"), 12: (3, 3, "gone"), 13: (5, 2, "newer")}, {}, read=14)
    assert live.rows() == {**{key: note for key, note in RIGHT.items() if key != 3}, 5: "newer"}
    assert audit_upserts(live.stream.spec, live.tables).errors == ()


def test_an_abandoned_replay_leaves_table_and_dead_letters_as_they_were(live: World) -> None:
    before = live.rows(), live.dead_letters()
    interrupted(live)
    opened = open_stream(live.stream.spec)
    backfill = read_backfill(live.stream.table().properties, "events")
    assert backfill is not None
    abandon(opened.tables, backfill)
    assert (live.rows(), live.dead_letters(), live.backfill_files()) == (*before, [])
    replay(open_stream(live.stream.spec), Selection())
    assert live.rows() == RIGHT


def test_a_dead_letter_is_discarded_or_merged_and_never_both(live: World) -> None:
    before = live.rows()
    check_none_is_discarded_and_replayed(live.stream.spec, Selection(end=at(3)))
    assert live.rows() == {key: note for key, note in RIGHT.items() if key != 2} | {2: before[2]}
    assert live.dead_letters().keys() == {0, 2, 7}


def test_dead_letters_that_another_replay_took_since_they_were_copied_are_not_merged_again(
    live: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = replaying._copy_dead_letters

    def while_another_ends(*args: Any) -> int:
        copied = copy(*args)
        monkeypatch.setattr(replaying, "_copy_dead_letters", copy)
        replay(open_stream(live.stream.spec), Selection(reasons=("MissingField",)))
        live.write({11: (3, 3, "gone")}, {}, read=12)
        return copied

    monkeypatch.setattr(replaying, "_copy_dead_letters", while_another_ends)
    (done,) = replay(open_stream(live.stream.spec), Selection())
    assert (done.landed, done.failed) == (0, 1)
    live.check_settled({key: note for key, note in RIGHT.items() if key != 3}, replays=2)


def test_rows_on_the_open_branch_of_an_earlier_declaration_are_waited_for(live: World) -> None:
    interrupted(live)
    now = live.tables.marker()
    assert now is not None
    marker = dataclasses.replace(now, open_snapshot_id=1)
    with pytest.raises(SpecError, match=r"still has rows on its open branch, .* Replay the dead letters after that"):
        check_no_open_windows(marker, _changes(live), table="test.events")
    check_no_open_windows(now, _changes(live), table="test.events")


def test_a_replay_staged_in_another_mode_is_staged_again(live: World) -> None:
    interrupted(live)
    backfill = read_backfill(live.stream.table().properties, "events")
    assert backfill is not None
    check_declared_mode(_changes(live), merges=True, backfill=backfill)
    with pytest.raises(StaleBatch, match="different mode"):
        check_declared_mode(_changes(live), merges=False, backfill=backfill)


def _changes(live: World) -> tuple[StagedFile, ...]:
    backfill = read_backfill(live.stream.table().properties, "events")
    assert backfill is not None
    return staged_files(committed_chunks(live.tables.journals, backfill), "main")


STEPS_MADE = 22
"""Number of changes of one replay that outlive its process."""


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("step", in_turns(STEPS_MADE))
def test_a_replay_that_is_killed_anywhere_and_run_again_merges_each_dead_letter_once(
    live: World, step: int, after: bool
) -> None:
    killed = is_killed(live.stream.spec, step, after=after)
    assert killed == (step < STEPS_MADE), "every step is tried, and the last one is no step any more"
    settled = 0 not in live.dead_letters()
    done = replay(open_stream(live.stream.spec), Selection(reasons=("MissingField",)))
    assert sum(d.landed for d in done) == (0 if settled else len(LETTERS) - 1), "each is told once"
    live.check_settled(replays=live.dead_letters()[7])
