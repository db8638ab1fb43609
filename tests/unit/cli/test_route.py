"""`frazil route`, and other commands, if a routed table was dropped or is ahead of the default table."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.schema import Schema
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import NestedField, StringType

from frazil.audit.stream_audit import audit_stream
from frazil.cli.main import frazil
from frazil.cli.output import split_commands
from frazil.commit import marker_changes
from frazil.commit.followers import COMMIT_GRACE_MS, Followers
from frazil.commit.journal import bare_path
from frazil.commit.marker import property_name
from frazil.commit.routed_table_records import delete_table_record, list_recorded_tables
from frazil.errors import AccessDenied, CommitUnavailable, SpecError, TableLost
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from frazil.table.sql_catalog import PreparedSqlCatalog
from tests.made_batches import MadeStream
from tests.made_routes import MadeRoute, shop


@pytest.fixture
def made(tmp_path: Path, frazil_home: Path) -> MadeRoute:  # noqa: ARG001
    text = shop().model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(text))
    made = MadeRoute(load_stream(tmp_path / "shop.yaml"), time.time_ns() // 1_000_000)
    made.begin_route("a")
    made.run({"main": 1, "shop.raw_a": 2, "shop.orders": 3})
    return made


def explained(table: Mapping[str, Any]) -> str:
    return f"{table['explanation']['reason']}. {table['explanation']['remedy']}"


KEPT_FILES = "frazil deletes no files in the folder of a dropped table, not even files of failed batches."


def call(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(frazil, [*words, "--streams", str(folder)])


def reported(folder: Path, *words: str) -> Any:
    done = call(folder, *words, "--json")
    found = json.loads(done.stdout)
    amiss = words[0] == "route" and "--give-up" not in words and any(found[of] for of in ("behind", "dropped", "ahead"))
    assert done.exit_code == (1 if amiss else 0), done.output
    return found


def given_up_again(folder: Path, table: str) -> str:
    """Repeat the earlier command, which asks for no confirmation. Return its output."""
    assert reported(folder, "route", "shop", "--give-up", table)["given-up"] == []
    return call(folder, "route", "shop", "--give-up", table).stdout


def made_again(table: str) -> None:
    catalog = load_catalog(None)
    schema = catalog.load_table(table).schema()
    catalog.drop_table(table)
    catalog.create_table(table, schema)


def test_a_dropped_table_is_reported_everywhere_and_its_stream_continues_next_to_the_remains(
    made: MadeRoute, tmp_path: Path
) -> None:
    made.batch({"shop.orders": 4})
    load_catalog(None).drop_table("shop.orders")
    (behind,) = reported(tmp_path, "route", "shop")["behind"]
    assert (behind["target"], behind["rows"]) == ("shop.orders", 4)
    assert call(tmp_path, "route", "shop").stdout.splitlines().count(KEPT_FILES) == 1
    (status,) = reported(tmp_path, "status", "shop")["streams"]
    assert any(said.startswith("shop.orders is missing 4 rows of 1 batch: ") for said in status["problems"])
    assert status["table-problems"] == {"shop.orders": "missing"}
    done = call(tmp_path, "cut", "shop")
    assert isinstance(done.exception, TableLost)
    assert "no cut of 'shop' has all rows: table shop.orders of the route of 'shop' is not" in str(done.exception)
    assert reported(tmp_path, "route", "shop", "--give-up", "shop.orders", "--yes")["given-up"] == ["shop.orders"]
    assert load_catalog(None).load_table("shop.orders").scan().count() == 0
    assert reported(tmp_path, "route", "shop") == {
        "stream": "shop",
        "behind": [],
        "coming": [],
        "dropped": [],
        "ahead": [],
        "given-up": [],
    }


NARROW = {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "40"}
"""A terminal's."""


def test_commands_that_fix_a_table_are_printed_unbroken_on_their_own_lines(made: MadeRoute, tmp_path: Path) -> None:
    made.batch({"shop.orders": 4})
    for table in ("shop.orders", "shop.raw_a"):
        load_catalog(None).drop_table(table)
    found = reported(tmp_path, "route", "shop")
    reasons = [explained(table) for of in ("behind", "dropped") for table in found[of]]
    commands = {command for reason in reasons for command in re.findall(r"`(frazil (?:register|route) [^`]+)`", reason)}
    assert len(commands) == 4
    for words, env in product((("route", "shop"), ("status", "shop"), ("status",), ("health",)), ({}, NARROW)):
        shown = CliRunner().invoke(frazil, [*words, "--streams", str(tmp_path)], env=env).stdout
        assert {f"    {command}" for command in commands} <= {*shown.splitlines()}, shown


def test_rows_that_a_writer_is_about_to_commit_are_not_reported_as_missing(
    made: MadeRoute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home has its last batch, and the tables have not."""
    last = made.batch({"shop.orders": 4})
    monkeypatch.setattr("frazil.clock.now_ms", lambda: last.created_at_ms + COMMIT_GRACE_MS - 1)
    found = reported(tmp_path, "route", "shop")
    assert ([coming["rows"] for coming in found["coming"]], found["behind"]) == ([4], [])
    assert call(tmp_path, "route", "shop").stdout.startswith(
        "shop.orders is missing 4 rows of the default table's last batch, of "
    )
    assert not [said for said in reported(tmp_path, "status", "shop")["streams"][0]["problems"] if "lacks" in said]
    monkeypatch.setattr("frazil.clock.now_ms", lambda: last.created_at_ms + COMMIT_GRACE_MS)
    assert [behind["rows"] for behind in reported(tmp_path, "route", "shop")["behind"]] == [4], "nobody brings them"


@pytest.mark.usefixtures("made")
def test_status_states_which_tables_its_row_count_covers(tmp_path: Path) -> None:
    said = call(tmp_path, "status", "shop").stdout
    assert "rows          1 in the default table (routed tables: `frazil health`)\n" in said
    assert "`frazil route shop` checks the routed tables" in said
    made_again("shop.orders")
    done = call(tmp_path, "route", "shop")
    assert (done.exit_code, "was dropped or renamed, and another table now has its name" in done.stdout) == (1, True)


def test_a_table_more_than_one_batch_behind_the_default_table_is_reported_at_once(
    made: MadeRoute, tmp_path: Path
) -> None:
    """A writer has all tables follow before its next batch, unless one refuses."""
    for _ in range(2):
        made.batch({"shop.orders": 4})
    assert [behind["batches"] for behind in reported(tmp_path, "route", "shop")["behind"]] == [2]
    (status,) = reported(tmp_path, "status", "shop")["streams"]
    assert status["table-problems"] == {"shop.orders": "8 rows behind"}
    made.follow()
    assert reported(tmp_path, "route", "shop")["behind"] == []


@pytest.mark.parametrize("purged", [False, True])
@pytest.mark.parametrize("table", ["shop.raw_a", "shop.orders"])
def test_a_complete_dropped_table_is_reported_until_a_user_accepts_it(
    made: MadeRoute, tmp_path: Path, table: str, *, purged: bool
) -> None:
    made.run({"main": 1})
    catalog = load_catalog(None)
    catalog.purge_table(table) if purged else catalog.drop_table(table)
    (dropped,) = reported(tmp_path, "route", "shop")["dropped"]
    assert (dropped["target"], f"--give-up {table}" in explained(dropped)) == (table, True)
    assert [*split_commands(explained(dropped)), KEPT_FILES] == call(tmp_path, "route", "shop").stdout.splitlines()
    (status,) = reported(tmp_path, "status", "shop")["streams"]
    assert explained(dropped) in status["problems"]
    for words in (("health",), ("health", table)):
        health = call(tmp_path, *words, "--json")
        (missing,) = [each for each in json.loads(health.stdout)["tables"] if each["missing"]]
        assert (missing["table"], missing["problem"], health.exit_code) == (table, explained(dropped), 25)
        people = call(tmp_path, *words).stdout
        assert re.search(rf"{table} +missing|state +missing", people)
        assert "\n".join(split_commands(explained(dropped))) in people
    assert (status["table-problems"], dropped["absence"]) == ({table: "missing"}, "missing")
    refused = call(tmp_path, "cut", "shop")
    assert isinstance(refused.exception, TableLost)
    assert explained(dropped) in str(refused.exception)
    assert reported(tmp_path, "route", "shop", "--give-up", table, "--yes")["given-up"] == [table]
    assert given_up_again(tmp_path, table) == f"No row of a batch waits for {table}: nothing is given up.\n"
    assert reported(tmp_path, "route", "shop")["dropped"] == []
    assert call(tmp_path, "health", table).exit_code == 0
    assert call(tmp_path, "cut", "shop").exit_code == 0
    assert catalog.load_table(table).scan().count() == 0


def test_rows_that_a_writer_staged_for_the_dropped_table_are_written_as_those_of_the_new_one(
    made: MadeRoute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer learns that the table is another one only when it commits."""
    catalog = load_catalog(None)
    known = made.tables.handle("shop.orders").current()
    catalog.drop_table("shop.orders")
    reported(tmp_path, "route", "shop", "--give-up", "shop.orders", "--yes")
    load, stale = type(catalog).load_table, [known]

    def loaded(of: Any, name: str) -> Any:
        return stale.pop() if name == "shop.orders" and stale else load(of, name)

    with monkeypatch.context() as patch:
        patch.setattr(type(catalog), "load_table", loaded)
        made.run({"shop.orders": 4})
    shutil.rmtree(known.location().removeprefix("file://"))
    table = catalog.load_table("shop.orders")
    assert table.location() != known.location()
    assert table.scan().to_arrow().num_rows == 4
    assert reported(tmp_path, "route", "shop")["behind"] == []


def test_a_foreign_table_in_place_of_a_routed_one_stays_and_waiting_rows_can_be_discarded(
    made: MadeRoute, tmp_path: Path
) -> None:
    made.batch({"main": 1, "shop.raw_a": 4})
    catalog = load_catalog(None)
    catalog.drop_table("shop.raw_a")
    catalog.create_table("shop.raw_a", Schema(NestedField(1, "neighbour", StringType())))
    (behind,) = reported(tmp_path, "route", "shop")["behind"]
    assert "keep the new table as it is, and let records of 'a' become dead letters" in explained(behind)
    (status,) = reported(tmp_path, "status", "shop")["streams"]
    assert any(explained(behind) in said for said in status["problems"])
    assert status["table-problems"] == {"shop.raw_a": "another table"}
    done = call(tmp_path, "route", "shop", "--give-up", "shop.raw_a", "--yes")
    assert "so the table is not changed" in done.output
    assert given_up_again(tmp_path, "shop.raw_a") == "No row of a batch waits for shop.raw_a: nothing is given up.\n"
    assert reported(tmp_path, "route", "shop")["behind"] == []
    assert list(catalog.load_table("shop.raw_a").properties) == []
    audited = call(tmp_path, "audit", "shop")
    assert "another table has this name: it does not have kafka_topic" in audited.output
    assert made.begin_route("a").refused.keys() == {"a"}
    assert made.followers is not None
    assert made.followers.waiting == {}


def test_landed_rows_of_a_dropped_table_are_not_reported_as_waiting(made: MadeRoute, tmp_path: Path) -> None:
    load_catalog(None).drop_table("shop.orders")
    found = reported(tmp_path, "route", "shop")
    assert (found["behind"], [table["target"] for table in found["dropped"]]) == ([], ["shop.orders"])
    audited = audit_stream(made.tables, window=None).findings
    assert any("this name, `frazil route shop` shows the remedy" in said.sentence for said in audited)
    assert not any("not yet committed to" in said.sentence for said in audited)


@pytest.mark.usefixtures("made")
def test_a_renamed_table_can_be_renamed_back_and_each_lost_table_is_reported_on_its_own_line(tmp_path: Path) -> None:
    catalog = load_catalog(None)
    catalog.rename_table("shop.orders", "shop.moved")
    catalog.drop_table("shop.raw_a")
    first, *lines = str(call(tmp_path, "cut", "shop").exception).splitlines()
    assert first == "no cut of 'shop' has all rows:"
    assert [line.split()[:3] for line in lines] == [["-", "table", "shop.orders"], ["-", "table", "shop.raw_a"]]
    assert all("If it was renamed, rename it back; " in line for line in lines)
    catalog.rename_table("shop.moved", "shop.orders")
    assert [table["target"] for table in reported(tmp_path, "route", "shop")["dropped"]] == ["shop.raw_a"]


def test_a_dropped_table_can_be_registered_with_the_command_from_the_message(made: MadeRoute, tmp_path: Path) -> None:
    made.run({"main": 1})
    uuid = made.tables.handle("shop.raw_a").refresh().metadata.table_uuid
    load_catalog(None).drop_table("shop.raw_a")
    (dropped,) = reported(tmp_path, "route", "shop")["dropped"]
    command = explained(dropped).partition("again: `")[2].partition("`")[0]
    CliRunner().invoke(frazil, shlex.split(command)[1:], catch_exceptions=False)
    assert load_catalog(None).load_table("shop.raw_a").metadata.table_uuid == uuid
    assert reported(tmp_path, "route", "shop")["dropped"] == []
    assert call(tmp_path, "cut", "shop").exit_code == 0


@pytest.mark.parametrize("table", ["shop.raw_a", "shop.orders"])
def test_a_dropped_and_recreated_routed_table_is_reported_until_a_user_accepts_it(
    made: MadeRoute, tmp_path: Path, table: str
) -> None:
    made.run({"main": 1})
    made_again(table)
    (dropped,) = reported(tmp_path, "route", "shop")["dropped"]
    assert f"table {table} of the route of 'shop'" in explained(dropped)
    assert "was dropped or renamed, and another table now has its name" in explained(dropped)
    assert f"`DROP TABLE {table}`, without PURGE" in explained(dropped)
    refused = call(tmp_path, "cut", "shop")
    assert isinstance(refused.exception, TableLost)
    assert explained(dropped) in str(refused.exception)
    made.__dict__.pop("tables", None)
    routed = made.begin_route("a")
    absent = {name: str(why) for name, why in routed.absent.items()}
    assert (absent, sorted(routed.refused)) == (
        {table: explained(dropped)} if table == "shop.orders" else {},
        ["a"] if table == "shop.raw_a" else [],
    ), "a start does not let it go on empty"
    assert reported(tmp_path, "route", "shop", "--give-up", table, "--yes")["given-up"] == [table]
    assert reported(tmp_path, "route", "shop")["dropped"] == []
    assert call(tmp_path, "cut", "shop").exit_code == 0
    made.__dict__.pop("tables", None)
    assert made.begin_route().absent == {}
    theirs = property_name("shop") not in load_catalog(None).load_table(table).properties
    assert theirs == (table == "shop.raw_a"), "what the template did not make stays as it is"


@pytest.mark.parametrize("table", ["shop.raw_a", "shop.orders"])
def test_a_renamed_table_whose_name_was_taken_can_be_renamed_back_as_the_message_says(
    made: MadeRoute, tmp_path: Path, table: str
) -> None:
    made.batch({"main": 1, table: 2})
    catalog = load_catalog(None)
    catalog.rename_table(table, "shop.moved")
    catalog.create_table(table, catalog.load_table("shop.moved").schema())
    (behind,) = reported(tmp_path, "route", "shop")["behind"]
    assert (behind["target"], behind["rows"]) == (table, 2)
    assert "was renamed, rename it back" in explained(behind)
    catalog.drop_table(table)
    catalog.rename_table("shop.moved", table)
    made.__dict__.pop("tables", None)
    made.begin_route("a")
    made.follow()
    found = reported(tmp_path, "route", "shop")
    assert (found["behind"], found["coming"], found["dropped"]) == ([], [], [])


@pytest.mark.parametrize("table", ["shop.raw_a", "shop.orders"])
def test_a_table_that_the_catalog_denies_access_to_is_reported_with_the_remedy(
    made: MadeRoute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    made.batch({"main": 1, table: 2})
    load = PreparedSqlCatalog.load_table

    def refusing(catalog: PreparedSqlCatalog, identifier: Any) -> Any:
        if table in (identifier, ".".join(identifier)):
            raise ForbiddenError("not yours")
        return load(catalog, identifier)

    monkeypatch.setattr(PreparedSqlCatalog, "load_table", refusing)
    refused = call(tmp_path, "route", "shop").exception
    assert isinstance(refused, AccessDenied)
    assert str(refused) == (
        f"table {table}: access denied (ForbiddenError: not yours): grant frazil's user read and write access "
        "to the table"
    )


def test_the_shown_command_registers_the_former_table_after_it_was_recreated(made: MadeRoute, tmp_path: Path) -> None:
    made.run({"main": 1})
    uuid = made.tables.handle("shop.orders").refresh().metadata.table_uuid
    made_again("shop.orders")
    (dropped,) = reported(tmp_path, "route", "shop")["dropped"]
    load_catalog(None).drop_table("shop.orders")
    command = explained(dropped).partition("register the former table again: `")[2].partition("`")[0]
    CliRunner().invoke(frazil, shlex.split(command)[1:], catch_exceptions=False)
    assert load_catalog(None).load_table("shop.orders").metadata.table_uuid == uuid
    assert reported(tmp_path, "route", "shop")["dropped"] == []
    assert call(tmp_path, "cut", "shop").exit_code == 0


def test_a_dropped_table_with_deleted_files_is_reported_without_files(made: MadeRoute, tmp_path: Path) -> None:
    made.run({"main": 1})
    location = bare_path(load_catalog(None).load_table("shop.orders").location())
    load_catalog(None).drop_table("shop.orders")
    shutil.rmtree(location)
    (dropped,) = reported(tmp_path, "route", "shop")["dropped"]
    assert "no files were found in" in explained(dropped)


def test_a_table_recorded_without_its_uuid_by_an_earlier_version_gets_its_uuid_at_a_start(
    made: MadeRoute, tmp_path: Path
) -> None:
    made.run({"main": 1})
    member = next(f.path for f in made.tables.store.list_files(f"{made.tables.state}/members") if "orders" in f.path)
    known = json.loads(made.tables.store.get(member) or b"")
    uuid = known.pop("uuid")
    made.tables.store.put(member, json.dumps(known).encode())
    assert reported(tmp_path, "route", "shop")["dropped"] == []
    made.__dict__.pop("tables", None)
    made.begin_route("a")
    assert json.loads(made.tables.store.get(member) or b"")["uuid"] == uuid


def test_a_dropped_table_whose_value_left_the_route_is_not_reported_as_missing(made: MadeRoute, tmp_path: Path) -> None:
    load_catalog(None).drop_table("shop.raw_a")
    text = shop().model_dump(mode="json", by_alias=True, exclude_unset=True)
    text["route"]["allow"] = ["b*"]
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(text))
    made.run({"main": 1})
    assert reported(tmp_path, "route", "shop")["dropped"] == []
    assert call(tmp_path, "cut", "shop").exit_code == 0


def test_rows_waiting_for_a_dropped_table_that_is_no_longer_routed_can_be_discarded(
    made: MadeRoute, tmp_path: Path
) -> None:
    made.batch({"shop.orders": 4})
    load_catalog(None).drop_table("shop.orders")
    text = shop().model_dump(mode="json", by_alias=True, exclude_unset=True)
    text["route"]["tables"] = {}
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(text))
    (behind,) = reported(tmp_path, "route", "shop")["behind"]
    assert explained(behind).startswith(
        "table shop.orders, which the route of 'shop' no longer has, is not in the catalog"
    )
    assert "discard the rows that wait for it: `frazil route shop --give-up shop.orders`" in explained(behind)
    done = call(tmp_path, "route", "shop", "--give-up", "shop.orders", "--yes")
    assert "Rows that never reach shop.orders: 4." in done.stdout
    assert "The route no longer includes shop.orders" in done.stdout
    assert given_up_again(tmp_path, "shop.orders") == "No row of a batch waits for shop.orders: nothing is given up.\n"
    assert reported(tmp_path, "route", "shop")["behind"] == []
    assert not load_catalog(None).table_exists("shop.orders")
    assert Followers.load(made.tables, made.home()).waiting == {}, "nor does a writer wait for it"


@pytest.mark.parametrize("purged", [False, True])
def test_a_table_dropped_under_an_earlier_version_is_reported_with_all_that_is_known(
    made: MadeRoute, tmp_path: Path, *, purged: bool
) -> None:
    for name in list_recorded_tables(made.tables):
        delete_table_record(made.tables, name)
    catalog = load_catalog(None)
    for table in ("shop.orders", "shop.raw_a"):
        catalog.purge_table(table) if purged else catalog.drop_table(table)
    for behind in reported(tmp_path, "route", "shop")["behind"]:
        assert ("`frazil register " in explained(behind)) == (not purged)
        assert f"or continue with an empty table: `frazil route shop --give-up {behind['target']}`" in explained(behind)
    refused = str(call(tmp_path, "cut", "shop").exception)
    assert "never made" not in refused
    assert ("`frazil register shop.orders " in refused) == (not purged)


def test_giving_up_a_table_with_an_unknown_route_value_is_refused_before_any_output(
    made: MadeRoute, tmp_path: Path
) -> None:
    assert made.spec.route
    hashed = made.spec.route.derive_table_name("Ä b")
    made.__dict__.pop("tables", None)
    made.begin_route("Ä b")
    made.batch({hashed: 1})
    load_catalog(None).drop_table(hashed)
    delete_table_record(made.tables, hashed)
    done = call(tmp_path, "route", "shop", "--give-up", hashed, "--yes")
    assert "the route value for which it was created is unknown" in str(done.exception)
    assert done.stdout == ""


def test_a_rollback_of_a_routed_table_can_be_accepted_although_no_rows_wait(made: MadeRoute, tmp_path: Path) -> None:
    made.run({"main": 1})
    assert given_up_again(tmp_path, "shop.orders").endswith("nothing is given up.\n")
    catalog = load_catalog(None)
    table = catalog.load_table("shop.orders")
    first = table.metadata.snapshots[0].snapshot_id
    back = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=first)
    catalog.commit_table(table, (), (back,))
    assert reported(tmp_path, "route", "shop", "--give-up", "shop.orders", "--yes")["given-up"] == ["shop.orders"]
    assert given_up_again(tmp_path, "shop.orders").endswith("nothing is given up.\n")


@pytest.mark.parametrize("table", ["shop.orders", "shop.raw_a"])
def test_a_table_that_lost_its_marker_continues_although_no_row_waits(
    made: MadeRoute, tmp_path: Path, table: str
) -> None:
    made.run({"main": 1})
    with load_catalog(None).load_table(table).transaction() as change:
        change.remove_properties(property_name("shop"))
    assert reported(tmp_path, "route", "shop", "--give-up", table, "--yes")["given-up"] == [table]
    assert property_name("shop") in load_catalog(None).load_table(table).properties
    assert given_up_again(tmp_path, table).endswith("nothing is given up.\n")


def test_cut_untag_removes_tags_from_the_remaining_tables(made: MadeRoute, tmp_path: Path) -> None:
    del made
    assert call(tmp_path, "cut", "shop", "--tag", "x").exit_code == 0
    load_catalog(None).drop_table("shop.raw_a")
    assert "shop.orders" in call(tmp_path, "cut", "shop", "--untag", "x").stdout


def test_after_a_forget_all_routed_tables_are_listed_and_one_command_releases_them(
    made: MadeRoute, tmp_path: Path
) -> None:
    assert call(tmp_path, "forget", "shop", "--yes").exit_code == 0
    marker_changes.adopt(made.tables, offsets={("shop", 0): 0}, source=made.source)
    found = reported(tmp_path, "route", "shop")["ahead"]
    assert found == ["shop.orders", "shop.raw_a"]
    reported(tmp_path, "route", "shop", *(word for table in found for word in ("--give-up", table)), "--yes")
    assert reported(tmp_path, "route", "shop")["ahead"] == []


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("table", ["shop.other", "shop.other_dead_letters", "shop.nothing"])
def test_give_up_refuses_a_table_that_is_not_in_the_route(tmp_path: Path, table: str) -> None:
    done = call(tmp_path, "route", "shop", "--give-up", table, "--yes")
    assert isinstance(done.exception, SpecError)
    assert str(done.exception) == f"table {table} is not in the route of 'shop'; no table is missing rows"
    load_catalog(None).drop_table("shop.orders")
    done = call(tmp_path, "route", "shop", "--give-up", table, "--yes")
    assert str(done.exception).endswith("; tables that are missing rows, or were dropped: shop.orders")


def test_route_of_a_stream_without_a_route_reports_only_that(tmp_path: Path, frazil_home: Path) -> None:  # noqa: ARG001
    text = shop(route=None).model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(text))
    MadeStream(load_stream(tmp_path / "shop.yaml"), time.time_ns() // 1_000_000).begin()
    assert str(call(tmp_path, "route", "shop").exception) == "stream 'shop' has no route"


def test_health_reports_the_same_missing_table_in_two_catalogs(
    made: MadeRoute,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("TYPE", "sql"), ("URI", f"sqlite:///{tmp_path}/o.db"), ("WAREHOUSE", f"file://{tmp_path}/o")):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__AWAY__{name}", value)
    table = {"identifier": "shop.other", "catalog": "away"}
    text = shop(name="away", table=table).model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "away.yaml").write_text(yaml.safe_dump(text))
    away = MadeRoute(load_stream(tmp_path / "away.yaml"), time.time_ns() // 1_000_000)
    away.begin_route("a")
    away.run({"shop.raw_a": 1})
    for catalog in (None, "away"):
        load_catalog(catalog).drop_table("shop.raw_a")
    done = call(tmp_path, "health")
    assert (done.exit_code, re.findall(r"(\S+\.shop\.raw_a) +missing", done.stdout)) == (
        25,
        ["default.shop.raw_a", "away.shop.raw_a"],
    )


def test_health_loads_no_existing_table_twice_and_reports_a_route_whose_check_failed(
    made: MadeRoute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.run({"main": 1, "shop.raw_a": 1})
    loads, load, exists = Counter[str](), PreparedSqlCatalog.load_table, PreparedSqlCatalog.table_exists

    def counted(catalog: PreparedSqlCatalog, identifier: Any) -> Any:
        loads[identifier if isinstance(identifier, str) else ".".join(identifier)] += 1
        return load(catalog, identifier)

    def refusing(catalog: PreparedSqlCatalog, identifier: Any) -> bool:
        if "shop.raw_a" in str(identifier):
            raise ForbiddenError("not yours")
        return exists(catalog, identifier)

    monkeypatch.setattr(PreparedSqlCatalog, "load_table", counted)
    monkeypatch.setattr(PreparedSqlCatalog, "table_exists", refusing)
    assert (call(tmp_path, "health").exit_code, loads["shop.raw_a"], loads["shop.orders"]) == (0, 1, 1)
    load_catalog(None).drop_table("shop.raw_a")
    done = call(tmp_path, "health")
    assert (done.exit_code, "route of shop" in done.stdout, "not yours" in done.stdout) == (16, True, True)


def test_an_unresponsive_catalog_delays_health_by_only_one_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = Counter[str | None]()

    def silent(name: str | None) -> Any:
        requested[name] += 1
        raise CommitUnavailable("no answer in time")

    monkeypatch.setattr("frazil.table.unresponsive.SLOW_ERROR_S", 0.0)
    monkeypatch.setattr("frazil.table.catalogs.open_existing_catalog", silent)
    monkeypatch.setattr("frazil.cli.health.open_existing_catalog", silent)
    monkeypatch.setattr("frazil.table.tables.open_existing_catalog", silent)
    text = shop().model_dump(mode="json", by_alias=True, exclude_unset=True)
    for number in range(12):
        spec = {
            **text,
            "name": f"shop{number}",
            "table": f"shop.other{number}",
            "route": {**text["route"], "tables": {}},
        }
        spec["route"]["template"] = f"shop.of{number}_{{value}}"
        (tmp_path / f"shop{number}.yaml").write_text(yaml.safe_dump(spec))
    found = json.loads(call(tmp_path, "health", "--json").stdout)
    assert all("no answer in time" in each["problem"] for each in found["tables"])
    assert (len(found["tables"]), requested) == (36, {None: 1})
