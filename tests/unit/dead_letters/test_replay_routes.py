"""Replayed dead letters of a routed stream reach their tables once, wherever the replay is killed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner, Result

from frazil.audit.findings import FindingKind
from frazil.audit.stream_audit import audit_stream
from frazil.backfill import routes
from frazil.backfill.commit import BackfillCommitter, abandon
from frazil.cli.main import frazil
from frazil.commit.backfill_records import BackfillState, branch_name, committed_chunks, read_backfill
from frazil.commit.history import Period
from frazil.commit.open_streams import open_stream
from frazil.dead_letters.replay import preview, replay
from frazil.dead_letters.selection import Selection, discard
from frazil.errors import CommitUnavailable, RouteBehind, SchemaIncompatible, WriterBusy
from frazil.ingest.contract import Target
from frazil.spec.load import load_stream
from frazil.stream.routed_tables import RoutedTables
from frazil.table.catalogs import load_catalog
from tests.made_routes import MadeRoute, shop
from tests.unit.dead_letters.test_replay import MARK, Killed, discard_once_copied, in_turns, is_killed

KINDS = [None, "order", "a", "new", "other", None]
"""Kinds of the records that are letters; the last of them is still no JSON."""
HOME, ORDERS, RAW_A, NEW = "shop.other", "shop.orders", "shop.raw_a", "shop.raw_new"
BEFORE = {"main": 1, RAW_A: 2}


@dataclass
class Shop(MadeRoute):
    """A routed stream whose dead letters keep their records' values."""

    def _rows(self, schema: pa.Schema, offsets: Any, *, dead_letters: bool) -> pa.Table:
        rows = super()._rows(schema, offsets, dead_letters=dead_letters)
        if not dead_letters:
            return rows
        values = [json.dumps({"kind": kind, "at": "2026-01-01T00:00:00Z"}).encode() for kind in KINDS]
        at = rows.schema.get_field_index("value")
        return rows.set_column(
            at, rows.schema.field(at), pa.array([*values[:-1], b"no JSON"], rows.schema.field(at).type)
        )

    def rows(self) -> dict[str, int]:
        catalog = load_catalog(None)
        names = [".".join(name) for name in catalog.list_tables("shop") if not name[-1].endswith("dead_letters")]
        found = {name: catalog.load_table(name).scan().to_arrow() for name in names}
        for rows in found.values():
            assert len({*rows["kafka_offset"].to_pylist()}) == rows.num_rows
        return {name: rows.num_rows for name, rows in found.items() if rows.num_rows}

    def dead_letters(self) -> int:
        return int(self.tables.dead_letters.refresh().scan().to_arrow().num_rows)

    def check_settled(self) -> None:
        assert self.rows() == {HOME: 2, ORDERS: 1, RAW_A: 3, NEW: 1}
        assert self.dead_letters() == 2
        for handle in (self.tables.main, self.tables.dead_letters):
            table = handle.refresh()
            backfill = read_backfill(table.properties, "shop")
            assert backfill is not None
            assert (branch_name("shop") in table.metadata.refs, backfill.state) == (False, BackfillState.PUBLISHED)
        assert [
            f.path for f in self.tables.store.list_files(f"{self.tables.state}/backfills") if "/waiting/" in f.path
        ] == []
        check_audit(self)


def declared(made: MadeRoute) -> dict[str, Any]:
    return made.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def check_audit(made: MadeRoute) -> None:
    assert [*map(str, audit_stream(open_stream(made.spec).tables).errors)] == []


@pytest.fixture
def made(frazil_home: Path, in_this_process: None, monkeypatch: pytest.MonkeyPatch) -> Shop:  # noqa: ARG001
    monkeypatch.setattr(routes, "ROUTED_TABLES_TIMEOUT_S", 0.0)
    route = {"by": "field", "name": "kind", "tables": {"order": ORDERS}, "template": "shop.raw_{value}"}
    found = Shop(shop(route={**route, "allow": ["a", "new"]}), time.time_ns() // 1_000_000)
    found.begin_route("a")
    found.run(BEFORE, rejected=len(KINDS))
    assert found.rows() == {HOME: 1, RAW_A: 2}
    return found


def test_each_dead_letter_goes_to_the_table_that_its_record_routes_to(made: Shop) -> None:
    before = made.rows()
    predicted = preview(open_stream(made.spec), Selection())
    assert (predicted.landing, predicted.failing) == (4, 2)
    assert {*predicted.rejects.counts} == {"NoTable", "NotAnObject"}
    assert (made.rows(), load_catalog(None).table_exists(NEW)) == (before, False), "a dry run creates no table"
    (done,) = replay(open_stream(made.spec), Selection())
    assert (done.landed, done.failed) == (4, 2)
    made.check_settled()
    reasons = made.tables.dead_letters.refresh().scan().to_arrow()["error_class"].to_pylist()
    assert sorted(reasons) == ["NoTable", "NotAnObject"]
    made.run({ORDERS: 2, NEW: 1, "main": 1})
    assert made.rows() == {HOME: 3, ORDERS: 3, RAW_A: 3, NEW: 2}, "the writer goes on"
    check_audit(made)
    (again,) = replay(open_stream(made.spec), Selection())
    assert (again.landed, again.failed) == (0, 2)
    check_audit(made)


@pytest.mark.usefixtures("frazil_home", "in_this_process")
def test_the_changed_rows_of_a_replay_are_those_of_all_its_tables(tmp_path: Path) -> None:
    spec = shop(mode="upsert", key=["kind"], schema={"kind": "string not null", "at": "timestamptz"})
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    made = Shop(load_stream(tmp_path / "shop.yaml"), time.time_ns() // 1_000_000)
    made.begin_route("a")
    made.run({}, rejected=len(KINDS))
    replay(open_stream(made.spec), Selection())
    landed = sum(made.rows().values())
    assert len(made.rows()) > 2
    load_catalog(None).drop_table(RAW_A)
    shown = CliRunner().invoke(frazil, ["backfill", "shop", "--status", "--streams", str(tmp_path)]).output
    assert f"changed rows  {landed - 1} inserted\n" in shown


def test_a_dry_run_predicts_a_dead_letter_that_also_has_a_row(made: Shop) -> None:
    home, dead_letters = load_catalog(None).load_table(HOME), made.tables.dead_letters.refresh().scan().to_arrow()
    row = home.scan().to_arrow()
    at = row.schema.get_field_index("kafka_offset")
    home.append(row.set_column(at, row.schema.field(at), dead_letters["kafka_offset"].slice(0, 1)))
    predicted = preview(open_stream(made.spec), Selection())
    (done,) = replay(open_stream(made.spec), Selection())
    assert (predicted.landing, predicted.failing) == (done.landed, done.failed) == (4, 2)


def test_a_replay_of_columns_that_the_writer_does_not_have_yet_changes_no_routed_table(made: Shop) -> None:
    before = load_catalog(None).load_table(RAW_A).metadata_location
    newer = shop(**{**declared(made), "schema": {"kind": "string", "at": "timestamptz", "note": "string"}})
    with pytest.raises(SchemaIncompatible, match="`frazil restart shop`"):
        replay(open_stream(newer), Selection())
    assert load_catalog(None).load_table(RAW_A).metadata_location == before


STEPS_MADE = 45
"""Number of changes of one replay that outlive its process."""


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("step", in_turns(STEPS_MADE))
def test_a_replay_that_is_killed_anywhere_and_run_again_lands_each_dead_letter_once(
    made: Shop, step: int, after: bool
) -> None:
    killed = is_killed(made.spec, step, after=after)
    assert killed == (step < STEPS_MADE), "every step is tried, and the last one is no step any more"
    check_audit(made)
    done = replay(open_stream(made.spec), Selection())
    assert sum(d.landed for d in done) in {0, 4}
    made.check_settled()


def test_a_dead_letter_is_discarded_or_lands_and_never_both(made: Shop) -> None:
    before = made.rows()
    with pytest.MonkeyPatch.context() as patch:
        discard_once_copied(patch, made.spec, Selection())
        assert replay(open_stream(made.spec), Selection()) == ()
    assert (made.rows(), made.dead_letters()) == (before, len(KINDS))
    check_audit(made)


def _fails(target: Target) -> Callable[..., Any]:
    follow = routes._commit_to_table

    def fails(tables: Any, backfill: Any, found: Target, files: Any) -> None:
        if found == target:
            raise RuntimeError("the catalog says no")
        follow(tables, backfill, found, files)

    return fails


def test_a_routed_table_that_refuses_replayed_rows_gets_them_with_the_next_replay(
    made: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(routes, "_commit_to_table", _fails(ORDERS))
        for _ in range(2):
            with pytest.raises(
                CommitUnavailable, match=r"table shop.orders does not have 1 row yet: .* the catalog says no"
            ):
                replay(open_stream(made.spec), Selection())
            assert (made.rows(), made.dead_letters()) == ({HOME: 2, RAW_A: 3, NEW: 1}, len(KINDS))
            check_audit(made)
    made.run({ORDERS: 1})
    made.at -= 1
    (finished, again) = replay(open_stream(made.spec), Selection())
    assert [(d.interrupted, d.landed, d.failed) for d in (finished, again)] == [(True, 4, 2), (False, 0, 2)]
    assert made.rows() == {HOME: 2, ORDERS: 2, RAW_A: 3, NEW: 1}
    check_audit(made)


def test_replayed_rows_that_a_routed_table_is_missing_are_reported_and_block_frazil_cut(
    made: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(declared(made)))

    def call(*words: str) -> Result:
        return CliRunner().invoke(frazil, [*words, "--streams", str(tmp_path)])

    with monkeypatch.context() as patch:
        patch.setattr(routes, "_commit_to_table", _fails(ORDERS))
        with pytest.raises(CommitUnavailable):
            replay(open_stream(made.spec), Selection())
    (behind,) = json.loads(call("route", "shop", "--json").stdout)["behind"]
    assert (behind["target"], behind["rows"]) == (ORDERS, 1)
    (status,) = json.loads(call("status", "shop", "--json").stdout)["streams"]
    said = f"{ORDERS} is missing 1 row of backfill {behind['backfill']}: the default table has these rows"
    assert any(problem.startswith(said) for problem in status["problems"])
    for words in ((), ("--tag", "x")):
        refused = call("cut", "shop", *words)
        assert isinstance(refused.exception, RouteBehind)
        assert said in str(refused.exception)
    discarded = call("dlq", "discard", "shop", "--because", "a test", "--yes")
    assert "2 dead letters of stream shop discarded." in discarded.stdout, "those that failed again"
    assert f"the replay {behind['backfill']} has already added their rows to the main table" in discarded.stderr
    given_up = call("route", "shop", "--give-up", ORDERS, "--yes")
    assert given_up.stdout == (
        f"No row of a batch waits for {ORDERS}: nothing is given up. "
        f"{said}. Run `frazil dlq replay shop` to add them here, or to see why that fails.\n"
    )
    finished, nothing = call("dlq", "replay", "shop").stdout.splitlines()
    assert finished.endswith("Stream shop: 4 dead letters are rows now; 2 failed again.")
    assert nothing == "Stream shop: nothing else to replay, because no dead letters are left."
    assert (made.rows()[ORDERS], made.dead_letters()) == (1, 2)
    assert made.tables.dead_letters.refresh().scan("discarded_at is not null").count() == 2, "the replay kept the marks"
    assert json.loads(call("route", "shop", "--json").stdout)["behind"] == []
    assert call("cut", "shop").exit_code == 0


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_cut_during_a_replay_reads_the_tables_again_or_is_refused(
    made: Shop, attempts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(declared(made)))
    cutting = import_module("frazil.cli.cut")  # the command has the name in the package
    load = cutting.load_route_tables

    def replayed(*args: Any, **more: Any) -> Any:
        """Replay with the default table and the dead letters loaded, but no routed tables."""
        monkeypatch.setattr(cutting, "load_route_tables", load)
        replay(open_stream(made.spec), Selection())
        return load(*args, **more)

    monkeypatch.setattr(cutting, "load_route_tables", replayed)
    monkeypatch.setattr(cutting, "MAX_LOAD_ATTEMPTS", attempts)
    found = CliRunner().invoke(frazil, ["cut", "shop", "--json", "--streams", str(tmp_path)])
    if attempts == 1:
        assert isinstance(found.exception, WriterBusy)
        return
    catalog = load_catalog(None)
    there = {t["table"]: t["snapshot-id"] for t in json.loads(found.stdout)["tables"]}
    rows = {name: catalog.load_table(name).scan(snapshot_id=at).count() for name, at in there.items() if at}
    assert rows == {HOME: 2, ORDERS: 1, RAW_A: 3, NEW: 1, made.spec.dead_letter_table: 2}


@pytest.mark.parametrize("table", [ORDERS, NEW])
def test_a_replay_ends_when_a_user_gives_up_its_rows_for_a_table_that_left_route_and_catalog(
    made: Shop, table: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(routes, "_commit_to_table", _fails(table))
        with pytest.raises(CommitUnavailable):
            replay(open_stream(made.spec), Selection())
    load_catalog(None).drop_table(table)
    left = {"tables": {"order": ORDERS}, "allow": ["a"]} if table == NEW else {"tables": {}}
    text = declared(made)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump({**text, "route": {**text["route"], **left}}))
    made.spec = load_stream(tmp_path / "shop.yaml")

    def call(*words: str) -> Result:
        return CliRunner().invoke(frazil, [*words, "--streams", str(tmp_path)])

    give_up = f"route shop --give-up {table}"
    (behind,) = json.loads(call("route", "shop", "--json").stdout)["behind"]
    assert f"table {table}" in behind["explanation"]["reason"]
    assert "which the route of 'shop' no longer has, is not in the catalog 'default'" in behind["explanation"]["reason"]
    for reported in (behind["explanation"]["remedy"], str(call("dlq", "replay", "shop").exception)):
        assert f"`frazil {give_up}`" in reported
    assert f"Rows that never reach {table}: 1." in call(*give_up.split(), "--yes").stdout
    assert call("route", "shop").exit_code == 0
    assert call("cut", "shop").exit_code == 0
    finished, again = call("dlq", "replay", "shop").stdout.splitlines()
    assert finished.endswith("Stream shop: 3 dead letters are rows now; 1 was given up; 2 failed again.")
    assert again == "Stream shop: 0 dead letters are rows now; 2 failed again."
    assert (made.dead_letters(), table in made.rows()) == (2, False)
    wrong = [(f.kind, f.where) for f in audit_stream(open_stream(made.spec).tables).errors]
    assert (FindingKind.MISCOUNTED, table) in wrong, "the audit of their time goes on to miss them"


@pytest.mark.parametrize("given_up", [True, False])
def test_a_period_is_audited_only_for_the_replay_batches_that_it_contains(
    made: Shop, given_up: bool, tmp_path: Path
) -> None:
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(declared(made)))
    replay(open_stream(made.spec), Selection())
    load_catalog(None).drop_table(ORDERS)
    if given_up:
        CliRunner().invoke(frazil, ["route", "shop", "--give-up", ORDERS, "--yes", "--streams", str(tmp_path)])
    made.now_ms += 2 * 3_600_000
    made.run({"main": 1, RAW_A: 1, **({ORDERS: 1} if given_up else {})})
    tables = open_stream(made.spec).tables
    later = audit_stream(tables, window=Period(made.now_ms - 1000, made.now_ms + 1000))
    assert (later.batches, [*map(str, later.errors)]) == (1, [])
    wrong = {(f.kind, f.where) for f in audit_stream(tables).errors}
    assert (FindingKind.MISCOUNTED, ORDERS) in wrong, "what a dropped table had is missed in its own time"
    assert ((FindingKind.MISSING, ORDERS) in wrong) == (not given_up), "no file waits once the letters have left"


def cut_at(made: Shop, folder: Path, ms: int) -> dict[str, int]:
    """Return each table's rows in the cut of a time."""
    text = made.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    (folder / "shop.yaml").write_text(yaml.safe_dump(text))
    moment = datetime.fromtimestamp(ms / 1000, UTC).isoformat()
    found = CliRunner().invoke(frazil, ["cut", "shop", "--at", moment, "--json", "--streams", str(folder)])
    there = {t["table"]: t["snapshot-id"] for t in json.loads(found.stdout)["tables"]}
    counted = {
        name: load_catalog(None).load_table(name).scan(snapshot_id=at).count() for name, at in there.items() if at
    }
    return {name: rows for name, rows in counted.items() if rows}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A clock that gives each commit a separate second."""
    found = itertools.count(time.time_ns() // 1_000_000 + 60_000, 1_000)
    monkeypatch.setattr("frazil.clock.now_ms", lambda: next(found))
    return found


def test_a_cut_at_a_time_contains_a_replay_in_all_tables_or_in_none(
    made: Shop, clock: Iterator[int], tmp_path: Path
) -> None:
    replay(open_stream(made.spec), Selection())
    published = load_catalog(None).load_table(HOME).current_snapshot()
    assert published is not None
    made.now_ms = next(clock)
    made.run({ORDERS: 1, RAW_A: 1})
    dead_letters = made.spec.dead_letter_table
    assert cut_at(made, tmp_path, published.timestamp_ms) == {HOME: 2, ORDERS: 1, RAW_A: 3, NEW: 1, dead_letters: 2}
    assert cut_at(made, tmp_path, published.timestamp_ms - 1) == {HOME: 1, RAW_A: 2, dead_letters: len(KINDS)}


def test_a_cut_before_a_replay_precedes_a_batch_that_a_table_got_after_it(
    made: Shop, clock: Iterator[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = BackfillCommitter.publish

    def decided(self: BackfillCommitter, *args: Any, **more: Any) -> Any:
        made.now_ms = next(clock)
        made.batch({"main": 1, RAW_A: 1})
        return publish(self, *args, **more)

    monkeypatch.setattr(BackfillCommitter, "publish", decided)
    replay(open_stream(made.spec), Selection())
    decided_ms = made.now_ms
    made.now_ms = next(clock)
    made.follow()
    dead_letters = made.spec.dead_letter_table
    assert cut_at(made, tmp_path, decided_ms) == {HOME: 1, RAW_A: 2, dead_letters: len(KINDS)}
    assert cut_at(made, tmp_path, next(clock)) == {HOME: 3, ORDERS: 1, RAW_A: 4, NEW: 1, dead_letters: 2}


def test_nothing_is_replayed_while_a_routed_table_has_missing_rows_or_does_not_exist(made: Shop) -> None:
    made.batch({RAW_A: 1})
    with pytest.raises(RouteBehind, match=r"shop.raw_a is missing 1 row of 1 batch: .* Fix the table first"):
        replay(open_stream(made.spec), Selection())
    made.follow()
    load_catalog(None).drop_table(ORDERS)
    with pytest.raises(RouteBehind, match=r"can start: table shop.orders of the route .* was dropped") as refused:
        replay(open_stream(made.spec), Selection())
    assert str(refused.value).count("`frazil route") == 1
    assert (made.dead_letters(), read_backfill(made.tables.main.refresh().properties, "shop")) == (len(KINDS), None)


def test_a_dry_run_waits_for_rows_that_the_writer_is_committing(made: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "ROUTED_TABLES_TIMEOUT_S", 60.0)
    made.batch({RAW_A: 1})
    opened = open_stream(made.spec)
    retry_policy = dataclasses.replace(opened.tables.retry_policy, wait=lambda _: made.follow())
    tables = dataclasses.replace(opened.tables, retry_policy=retry_policy)
    found = preview(dataclasses.replace(opened, tables=tables), Selection())
    assert found.landing + found.failing == len(KINDS)


def test_batches_committed_during_a_replay_do_not_affect_its_dead_letters(
    made: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, open_ = routes.rewrite_files, RoutedTables.open

    def opened(self: RoutedTables, home: Any) -> None:
        made.run({RAW_A: 1})
        open_(self, home)

    def written(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(routes, "rewrite_files", again)
        made.run({ORDERS: 1, "main": 1})
        return again(*args, **more)

    monkeypatch.setattr(RoutedTables, "open", opened)
    monkeypatch.setattr(routes, "rewrite_files", written)
    opened_stream = open_stream(made.spec)
    (done,) = replay(opened_stream, Selection())
    assert (done.landed, done.failed) == (4, 2)
    right = {HOME: 3, ORDERS: 2, RAW_A: 4, NEW: 1}
    assert made.rows() == right
    backfill = read_backfill(made.tables.main.refresh().properties, "shop")
    assert backfill is not None
    routes.commit_to_routed_tables(opened_stream.tables, backfill, committed_chunks(made.tables.journals, backfill))
    assert made.rows() == right, "once, whoever brings them"
    check_audit(made)


def test_an_abandoned_replay_leaves_tables_and_dead_letters_as_they_were(
    made: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("frazil.backfill.commit.BackfillCommitter.publish", _killed)
        with pytest.raises(Killed):
            replay(open_stream(made.spec), Selection())
    backfill = read_backfill(made.tables.main.refresh().properties, "shop")
    assert backfill is not None
    abandon(open_stream(made.spec).tables, backfill)
    assert (made.rows(), made.dead_letters()) == ({HOME: 1, RAW_A: 2}, len(KINDS))
    assert [f.path for f in made.tables.store.list_files(f"{made.tables.state}/backfills")] == []
    replay(open_stream(made.spec), Selection())
    made.check_settled()


def test_dead_letters_of_a_replay_that_was_killed_at_its_end_can_be_discarded(
    made: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("frazil.backfill.commit.BackfillCommitter.publish", _killed)
        with pytest.raises(Killed):
            replay(open_stream(made.spec), Selection())
        with pytest.raises(WriterBusy, match="end it with `frazil backfill shop --abandon`"):
            discard(open_stream(made.spec), Selection(), MARK)
        backfill = read_backfill(made.tables.main.refresh().properties, "shop")
        assert backfill is not None
        patch.setattr("frazil.backfill.commit.finish_ended_backfill", _killed)
        with pytest.raises(Killed):
            abandon(open_stream(made.spec).tables, backfill)
    assert discard(open_stream(made.spec), Selection(), MARK) == len(KINDS), "the default table has none of them"


def _killed(*_: Any, **__: Any) -> None:
    raise Killed
