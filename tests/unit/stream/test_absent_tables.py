"""A routed table cannot be created or loaded: its rows wait in files and reach it once, despite kills."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyiceberg.exceptions import ForbiddenError, ServerError
from pyiceberg.types import StringType

from frazil.audit.stream_audit import audit_stream
from frazil.cli.route import route as route_command
from frazil.commit.compare_and_swap import RetryPolicy
from frazil.commit.followers import RETRY_TIMEOUT_S, LaggingTable
from frazil.commit.journal import bare_path
from frazil.commit.marker_changes import discard_rows_of_existing_table, discard_rows_of_missing_table
from frazil.commit.missing_rows import find_lagging_tables
from frazil.commit.open_streams import OpenStream
from frazil.commit.settle import settle
from frazil.commit.staging_targets import object_path
from frazil.commit.waiting_files import load_missing_table_note, load_missing_table_notes
from frazil.errors import AccessDenied, Explanation, RouteBehind
from frazil.events import StreamEvent, TablesBehind, WaitingRowsCommitted
from frazil.ingest.contract import Target
from frazil.maintenance.orphans import UndecidedFiles
from frazil.status.table import describe_missing_tables
from frazil.stream.dropped_tables import find_dropped_tables, recreate_table
from frazil.stream.route import MAX_NAMED, StreamRoute, remedy_pointer
from frazil.stream.routed_tables import RoutedTables
from frazil.table.catalogs import load_catalog
from frazil.table.sql_catalog import PreparedSqlCatalog
from tests.made_routes import MadeRoute, shop

A, B, ORDERS = "shop.raw_a", "shop.raw_b", "shop.orders"

pytestmark = pytest.mark.usefixtures("frazil_home")


class Killed(BaseException):
    """The process ends there."""


class Broken:
    """The calls that the catalog refuses, by method name and table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: set[tuple[str, str]] = set()
        self.met: Callable[[str, str], None] = lambda *_: None
        """Called before and after each call."""
        for name in ("create_table", "load_table", "commit_table"):
            monkeypatch.setattr(PreparedSqlCatalog, name, self._refusing(name, getattr(PreparedSqlCatalog, name)))

    def _refusing(self, name: str, call: Any) -> Any:
        def refusing(catalog: Any, *given: Any, **named: Any) -> Any:
            table = given[0] if given else named["identifier"]
            identifier = table if isinstance(table, str) else ".".join(getattr(table, "name", lambda: table)())
            if (name, identifier) in self.refused:
                raise ForbiddenError("not yours")
            self.met(f"before {name}", identifier)
            done = call(catalog, *given, **named)
            self.met(f"after {name}", identifier)
            return done

        return refusing


class Shop(MadeRoute):
    """The stream of `made_routes`, by the parts of its writer."""

    route: StreamRoute
    waited_s = 0.0
    """Seconds that its retries waited, without a real wait."""
    is_ending = False

    def start(self) -> Shop:
        """Take over in another process."""
        self.__dict__.pop("tables", None)
        retry_policy = RetryPolicy(clock=lambda: self.waited_s, wait=self._wait)
        self.__dict__["tables"] = dataclasses.replace(self.tables, retry_policy=retry_policy)
        settle(self.tables, self.begin())
        self.said: list[StreamEvent] = []
        found = StreamRoute.begin(self.spec, self.tables, self.home(), self.followers, self.said.append)
        assert found is not None
        self.route, self.followers = found, found.followers
        return self

    def _wait(self, seconds: float) -> bool:
        self.waited_s += seconds
        return self.is_ending

    @property
    def routed(self) -> RoutedTables:
        assert self.route.routed is not None
        return self.route.routed

    def land(self, **rows: int) -> None:
        """A batch with that many rows of each value."""
        self.routed.retry_absent(self.home())
        self.route.create_tables([value for value in rows if value not in self.routed.targets], self.home())
        self.absent = self.routed.absent
        self.run({self.routed.targets[value]: count for value, count in rows.items()})

    def offsets(self, table: Target) -> list[int]:
        rows = load_catalog(None).load_table(table).scan(selected_fields=("kafka_offset",)).to_arrow()
        return sorted(rows["kafka_offset"].to_pylist())

    def moved(self, table: Target) -> list[str]:
        """The table's files with rows that waited, and their records."""
        folder = f"{load_catalog(None).load_table(table).location()}/data/{self.spec.name}/waited"
        return [file.path for file in self.tables.store_of(table).list_files(folder)]

    def waiting_names(self) -> list[str]:
        """Return the names of all files in the folder of waiting rows."""
        return [Path(bare_path(f.path)).name for f in self.tables.store.list_files(self.tables.waiting_folder())]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    return Broken(monkeypatch)


@pytest.fixture
def made(broken: Broken) -> Shop:  # noqa: ARG001 - the catalog first
    return Shop(shop(), time.time_ns() // 1_000_000 + 3_600_000).start()


def test_a_routed_table_that_cannot_be_created_lags_alone_and_gets_its_rows_later(made: Shop, broken: Broken) -> None:
    broken.refused = {("create_table", A)}
    made.land(a=2, order=1)
    made.land(a=1, b=3)
    assert (made.offsets(ORDERS), made.offsets(B)) == ([2], [4, 5, 6])
    (behind,) = find_lagging_tables(made.tables, made.home())
    assert (behind.target, behind.rows, behind.batches) == (A, 3, 2)
    assert "not yours" in behind.explanation.reason, "who looks hears what the writer met"
    assert {name: str(why) for name, why in describe_missing_tables(made.spec).items()} == {A: str(behind)}
    assert "not yours" in made.route.followers.behind[A].explanation.reason
    found = audit_stream(made.tables, window=None)
    assert found.clean
    assert [f.sentence for f in found.findings] == [
        "3 rows are not yet committed to the table. If this persists, `frazil route` shows the reason"
    ]
    broken.refused.clear()
    made.land(b=1)
    assert made.offsets(A) == [0, 1, 3]
    made.land(a=1)
    assert (made.offsets(A), made.routed.absent) == ([0, 1, 3, 8], {})
    assert len(load_catalog(None).load_table(A).metadata.snapshots) == 3, "its marker, what waited, the last batch"
    assert audit_stream(made.tables, window=None).findings == ()
    made.start()
    assert made.waiting_names() == []


STEPS = [f"{when} {name}" for name in ("create_table", "commit_table") for when in ("before", "after")]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_a_writer_killed_while_a_missing_table_is_created_loses_and_duplicates_nothing(
    made: Shop, broken: Broken, step: str, nth: int
) -> None:
    broken.refused = {("create_table", A)}
    made.land(a=2, order=1)
    made.land(a=1)
    broken.refused.clear()
    calls: Counter[str] = Counter()

    def kill(what: str, table: str) -> None:
        if table == A:
            calls[what] += 1
            if what == step and calls[what] == nth:
                raise Killed

    broken.met = kill
    try:
        made.start()
    except Killed:
        made.start()
    broken.met = lambda *_: None
    made.start()
    made.land(a=1)
    assert made.offsets(A) == [0, 1, 3, 4]
    assert audit_stream(made.tables, window=None).findings == ()


def test_a_writer_killed_before_the_batch_with_the_first_row_of_a_table_leaves_no_files(
    made: Shop, broken: Broken
) -> None:
    broken.refused = {("create_table", A)}
    made.route.create_tables(["a"], made.home())
    made.absent = made.routed.absent
    key = made.home().key
    folder = made.tables.waiting_folder(key._replace(batch=key.batch + 1))
    made.write(made.tables.main.refresh(), key, A, {0: [0]}, folder=folder)
    assert len(made.waiting_names()) == 2
    made.start()
    assert made.waiting_names() == []
    made.land(a=1)
    broken.refused.clear()
    made.start()
    assert made.offsets(A) == [0]


def test_a_paused_writer_and_its_successor_commit_waiting_rows_once(made: Shop, broken: Broken) -> None:
    broken.refused = {("create_table", A)}
    made.land(a=2)
    broken.refused.clear()
    paused, met = made.route.followers, list[str]()

    def successor(what: str, table: str) -> None:
        if (what, table) == ("before commit_table", A) and not met:
            met.append(what)
            made.start()

    broken.met = successor
    paused.commit()
    assert met
    assert (made.offsets(A), paused.behind) == ([0, 1], {})
    made.land(a=1)
    assert made.offsets(A) == [0, 1, 2]


def test_a_table_changed_while_it_could_not_be_loaded_gets_its_rows_in_its_own_columns(
    made: Shop, broken: Broken
) -> None:
    made.land(a=1)
    with load_catalog(None).load_table(A).update_schema() as update:
        update.add_column("note", StringType())
        update.move_first("note")
    broken.refused = {("load_table", A)}
    made.start()
    made.land(a=2, order=1)
    assert made.offsets(ORDERS) == [3]
    broken.refused.clear()
    made.land(order=1)
    assert made.offsets(A) == [0, 1, 2]
    assert load_catalog(None).load_table(A).scan().to_arrow()["note"].to_pylist() == [None] * 3


@pytest.fixture
def refusing_rows(made: Shop, broken: Broken) -> Shop:
    """`A` exists now, with its marker, and two rows wait for it. It refuses them until `broken.met` is reset."""
    broken.refused = {("create_table", A)}
    made.land(a=2)
    broken.refused.clear()
    commits = Counter[str]()

    def refuse(what: str, table: str) -> None:
        commits[table] += what == "before commit_table"
        if (what, table) == ("before commit_table", A) and commits[A] > 1:
            raise ForbiddenError("no rows")

    broken.met = refuse
    made.land(b=1)
    assert "no rows" in made.route.followers.behind[A].explanation.reason
    return made


def test_each_start_offers_a_table_the_same_files(refusing_rows: Shop, broken: Broken) -> None:
    made = refusing_rows
    first = made.moved(A)
    for _ in range(3):
        made.start()
    assert made.moved(A) == first
    assert [Path(path).suffix for path in first] == [".parquet", ".json"]
    undecided = UndecidedFiles.of(load_catalog(None).load_table(A).properties)
    assert all(undecided.holds(path) for path in first), "no clean-up takes them for orphans"
    broken.met = lambda *_: None
    made.start()
    assert made.offsets(A) == [0, 1]
    assert made.moved(A) == first[:1]


def _gone(made: Shop) -> None:
    made.tables.store_of(A).delete([path for path in made.moved(A) if path.endswith(".parquet")])


def _torn(made: Shop) -> None:
    made.tables.store_of(A).put(made.moved(A)[-1], b"{")


def _of_another_table(made: Shop) -> None:
    store, record = made.tables.store_of(A), made.moved(A)[-1]
    uuid = str(load_catalog(None).load_table(A).metadata.table_uuid)
    said = store.get(record)
    assert said is not None
    assert uuid.encode() in said
    store.put(record, said.replace(uuid.encode(), b"another"))


@pytest.mark.parametrize("spoil", [_gone, _torn, _of_another_table])
def test_rows_are_written_again_once_more_when_the_files_of_an_earlier_try_cannot_be_taken(
    refusing_rows: Shop, broken: Broken, spoil: Callable[[Shop], None]
) -> None:
    made = refusing_rows
    before = set(made.moved(A))
    spoil(made)
    broken.met = lambda *_: None
    made.land(b=1)
    assert made.offsets(A) == [0, 1]
    assert len(set(made.moved(A)) - before) == 1
    assert audit_stream(made.tables, window=None).findings == ()


def _down_for_an_hour(made: Shop) -> None:
    """The writer is killed once the default table has a row for `A`, and comes back later than `route.lag` allows."""
    made.land(a=1)
    made.batch({A: 1})
    made.now_ms += 3_600_000


def test_one_error_after_a_long_downtime_does_not_end_the_stream(made: Shop, broken: Broken) -> None:
    _down_for_an_hour(made)
    errors = [ServerError("503, once")]

    def fail(what: str, table: str) -> None:
        if (what, table) == ("before load_table", A) and errors:
            raise errors.pop()

    broken.met = fail
    made.start()
    assert errors == []
    assert (made.offsets(A), made.route.followers.behind) == ([0, 1], {})


def test_a_start_fails_if_a_table_that_has_been_behind_too_long_stays_behind(made: Shop, broken: Broken) -> None:
    _down_for_an_hour(made)
    broken.refused = {("load_table", A)}
    with pytest.raises(RouteBehind, match=r"access denied \(.*not yours\): grant frazil's user.*--give-up shop\.raw_a"):
        made.start()
    assert made.waited_s == pytest.approx(RETRY_TIMEOUT_S)


def test_a_start_that_fails_for_a_dropped_table_reports_each_fact_once(made: Shop) -> None:
    _down_for_an_hour(made)
    load_catalog(None).drop_table(A)
    with pytest.raises(RouteBehind, match="Once this is fixed, start the writer again") as ended:
        made.start()
    assert (str(ended.value).count("--give-up"), str(ended.value).count("was dropped")) == (1, 1)


def test_a_writer_asked_to_stop_while_its_start_waits_for_a_table_does_not_fail(made: Shop, broken: Broken) -> None:
    _down_for_an_hour(made)
    broken.refused = {("load_table", A)}
    made.is_ending = True
    made.start()
    assert set(made.route.followers.behind) == {A}


def test_a_routed_table_that_cannot_be_loaded_does_not_block_the_start_of_the_writer(
    made: Shop, broken: Broken
) -> None:
    broken.refused = {("load_table", ORDERS)}
    made.start()
    assert set(made.routed.absent) == {ORDERS}
    made.land(order=1, b=1)
    assert made.offsets(B) == [1]
    broken.refused.clear()
    made.start()
    made.land(order=1)
    assert made.offsets(ORDERS) == [0, 2]


def test_a_table_created_meanwhile_by_another_program_is_never_written_to(made: Shop, broken: Broken) -> None:
    broken.refused = {("create_table", A)}
    made.land(a=1)
    broken.refused.clear()
    load_catalog(None).create_table(A, made.tables.main.current().schema())
    made.start()
    assert "was not created for these rows" in made.route.followers.behind[A].explanation.reason
    assert made.offsets(A) == []
    made.spec = shop(route={"by": "field", "name": "kind", "tables": {"a": A}})
    made.start()
    assert made.offsets(A) == [0], "a person said so"


def test_discarding_waiting_rows_ends_the_error_of_a_foreign_table_and_leaves_it_unchanged(
    made: Shop, broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.refused = {("create_table", A)}
    made.land(a=1)
    broken.refused.clear()
    theirs = load_catalog(None).create_table(A, made.tables.main.current().schema())
    made.now_ms += 3_600_000
    with pytest.raises(RouteBehind, match="was not created for these rows"):
        made.start()
    monkeypatch.setattr("frazil.cli.route.find_stream", lambda *_: made.spec)
    monkeypatch.setattr("frazil.cli.route.open_read_only", lambda _: OpenStream(made.spec, made.tables))
    done = CliRunner().invoke(route_command, ["shop", "--give-up", A, "--yes"], catch_exceptions=False)
    assert f"The route did not create {A}, so the table is not changed" in done.output
    made.start()
    assert (made.route.followers.behind, set(made.routed.refused)) == ({}, {"a"})
    assert load_catalog(None).load_table(A).metadata == theirs.metadata


def test_rows_of_a_table_that_cannot_be_created_can_be_discarded(made: Shop, broken: Broken) -> None:
    broken.refused = {("create_table", A)}
    made.land(a=2)
    discard_rows_of_missing_table(made.tables, A, made.home())
    assert find_lagging_tables(made.tables, made.home()) == []
    made.land(b=1)
    assert made.route.followers.behind == {}, "a writer that runs takes notice"
    made.land(a=1)
    assert [b.rows for b in find_lagging_tables(made.tables, made.home())] == [1]
    broken.refused.clear()
    made.start()
    assert made.offsets(A) == [3]
    made.land(b=1)
    made.start()
    assert load_missing_table_notes(made.tables) == []


def test_a_note_that_an_earlier_version_wrote_still_discards_its_rows(made: Shop, broken: Broken) -> None:
    broken.refused = {("create_table", A)}
    made.land(a=2)
    discard_rows_of_missing_table(made.tables, A, made.home())
    note = load_missing_table_note(made.tables, A)
    assert note is not None
    assert note.given_up is not None
    former = {"target": A, "value": "a", "reason": note.reason, "given_up": note.given_up, "remedy": note.remedy}
    path = object_path(f"{made.tables.waiting_folder()}/tables", A)
    made.tables.store.put(path, json.dumps(former, default=dataclasses.asdict).encode())
    assert find_lagging_tables(made.tables, made.home()) == []
    assert load_missing_table_note(made.tables, A) == note


@pytest.mark.parametrize("given_up", [True, False])
def test_a_missing_table_that_is_no_longer_allowed_is_created_only_for_waiting_rows(
    made: Shop, broken: Broken, *, given_up: bool
) -> None:
    """The note of rows that were given up outlasts the next start."""
    broken.refused = {("create_table", A)}
    made.land(a=2, b=1)
    if given_up:
        discard_rows_of_missing_table(made.tables, A, made.home())
    text = made.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    made.spec = shop(route={**text["route"], "allow": ["b*"]})
    made.start()
    assert "a" not in made.routed.targets, "its records are dead letters from here on"
    broken.refused.clear()
    for _ in range(2):
        made.start()
        made.land(b=1)
    assert load_catalog(None).table_exists(A) == (not given_up)
    assert given_up or made.offsets(A) == [0, 1]


def allowing(made: Shop, *allow: str, **more: Any) -> Shop:
    """The next start has this declaration."""
    text = made.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    made.spec = shop(route={**text["route"], "allow": list(allow), **more})
    return made


def test_an_existing_table_that_cannot_be_loaded_keeps_its_value_whatever_the_route_allows(
    made: Shop, broken: Broken
) -> None:
    made.land(a=1, b=1)
    broken.refused = {("load_table", A)}
    allowing(made, "b*").start()
    made.land(a=1)
    broken.refused = set()
    made.start()
    assert (made.routed.targets["a"], made.offsets(A)) == (A, [0, 2])


def test_a_start_creates_no_table_if_more_tables_exist_than_the_limit(made: Shop, broken: Broken) -> None:
    made.land(v1=1, v2=1, v3=1)
    broken.refused = {("create_table", f"shop.raw_w{i}") for i in range(3)}
    made.land(w0=1, w1=1, w2=1)
    for i in range(3):
        discard_rows_of_missing_table(made.tables, f"shop.raw_w{i}", made.home())
    broken.refused = set()
    allowing(made, "*", limit=2).start()
    assert not [table for _, table in load_catalog(None).list_tables("shop") if table.startswith("raw_w")]


def test_the_audit_does_not_need_a_named_table_to_which_nothing_was_written(made: Shop, broken: Broken) -> None:
    made.land(a=2, b=1)
    load_catalog(None).drop_table(A)
    broken.refused = {("load_table", "shop.kept_a")}
    (missing, *_) = audit_stream(made.tables, window=None, candidate_names=["shop.kept_a"]).findings
    assert "it was dropped or renamed" in missing.sentence


def test_rows_of_a_table_that_was_renamed_count_once_though_another_has_its_name(made: Shop, broken: Broken) -> None:  # noqa: ARG001
    made.land(a=2, b=1)
    catalog = load_catalog(None)
    catalog.rename_table(A, "shop.kept_a")
    catalog.create_table(A, catalog.load_table("shop.kept_a").schema())
    allowing(made, "b*", tables={"order": ORDERS, "a": "shop.kept_a"}).start()
    made.land(a=1)
    assert made.offsets("shop.kept_a") == [0, 1, 3]
    assert audit_stream(made.tables, window=None, candidate_names=["shop.kept_a"]).findings == ()


def test_a_table_whose_name_does_not_show_its_route_value_is_recreated_for_that_value(
    made: Shop, broken: Broken
) -> None:
    hashed = shop().route.derive_table_name("Ä")  # type: ignore[union-attr]
    broken.refused = {("create_table", hashed)}
    made.route.create_tables(["Ä"], made.home())
    note = load_missing_table_note(made.tables, hashed)
    assert note is not None
    assert note.value == "Ä"
    broken.refused.clear()
    recreate_table(made.spec, made.tables, hashed)
    assert load_catalog(None).load_table(hashed).properties["frazil.route.shop"] == "Ä"


@pytest.mark.parametrize("purged", [False, True])
def test_a_start_does_not_recreate_a_dropped_table_and_its_rows_wait(
    made: Shop, caplog: pytest.LogCaptureFixture, *, purged: bool
) -> None:
    catalog = load_catalog(None)
    made.land(a=1, order=1)
    made.land(b=1)
    catalog.purge_table(A) if purged else catalog.drop_table(A)
    made.start()
    assert "was dropped or renamed" in made.routed.absent[A].reason
    assert not catalog.table_exists(A), "a start must not hide that"
    made.land(a=2, order=1)
    assert (made.offsets(ORDERS), catalog.table_exists(A)) == ([1, 5], False)
    assert "was dropped or renamed" in made.route.followers.behind[A].explanation.reason
    caplog.clear()
    made.start()
    reported = [
        r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "clock" not in r.getMessage()
    ]
    assert not [one for one in reported if "NoSuchTableError" in one or "`frazil route shop" not in one]
    assert any("failed batches leave files in its folder" in one for one in reported)
    recreate_table(made.spec, made.tables, A)
    discard_rows_of_existing_table(made.tables, A, made.home())
    made.start()
    made.land(a=1)
    assert made.offsets(A) == [6]


def test_a_dropped_table_is_missing_only_rows_it_never_had_and_the_writer_names_the_command(made: Shop) -> None:
    made.land(a=1, order=1)
    load_catalog(None).drop_table(A)
    made.start()
    assert A in made.route.followers.waiting, "the default table does not know yet that its tables have its last batch"
    assert made.route.followers.behind == {}
    said: list[Any] = []
    made.route.emit = said.append
    made.land(a=2, order=1)
    made.route.report()
    (outage,) = said
    assert outage.sentence.startswith(f"{A} is missing 2 rows of 1 batch: table {A} of the route of 'shop'")
    assert f"`frazil route shop --give-up {A}`" in outage.sentence
    assert "shows the remedy" not in outage.sentence, "the reason does already"
    (behind,) = find_lagging_tables(made.tables, made.home())
    assert (behind.rows, behind.batches) == (2, 1)


def test_a_reason_without_a_remedy_names_the_command_that_shows_more() -> None:
    plain, fixed = (LaggingTable(A, 0, 1, 1, Explanation("no writes", remedy)) for remedy in ("", "Restore it"))
    assert remedy_pointer("shop", [fixed]) == ""
    for behind in ([plain], [fixed, plain], [fixed] * (MAX_NAMED + 1)):
        assert remedy_pointer("shop", behind) == ". `frazil route shop` shows the remedy"


def test_tables_that_an_earlier_version_made_are_known_after_a_start(made: Shop) -> None:
    made.land(a=1, order=1)
    made.tables.store.delete([file.path for file in made.tables.store.list_files(f"{made.tables.state}/members")])
    made.start()
    load_catalog(None).drop_table(A)
    assert [found.target for found in find_dropped_tables(made.spec, made.tables)] == [A]


def test_with_atomic_commits_a_table_that_cannot_be_created_stops_all_tables(broken: Broken) -> None:
    made = Shop(shop(commit={"atomic": True}), time.time_ns() // 1_000_000).start()
    broken.refused = {("create_table", A)}
    with pytest.raises(AccessDenied, match="not yours"):
        made.route.create_tables(["a"], made.home())


def test_a_complete_dropped_table_does_not_keep_a_run_from_ending(made: Shop) -> None:
    made.land(a=1, order=1)
    load_catalog(None).drop_table(A)
    made.start()
    assert made.route is not None
    assert not made.route.behind
    assert [*made.followers.waiting] == [A]  # a user may register it as it was before


def test_routed_tables_with_missing_rows_are_reported_until_all_rows_have_landed(made: Shop) -> None:
    made.land(a=1)
    made.batch({A: 1})
    catalog = load_catalog(None)
    catalog.rename_table(A, "shop.elsewhere")
    for _ in range(2):
        made.route.tried_at_s = 0.0
        made.route.follow()
    catalog.rename_table("shop.elsewhere", A)
    for _ in range(2):
        made.route.tried_at_s = 0.0
        made.route.follow()
    reported = [what.names for what in made.said if isinstance(what, TablesBehind)]
    assert reported == [frozenset(), {A}, {A}, frozenset()]
    assert [what.rows for what in made.said if isinstance(what, WaitingRowsCommitted)] == [1]


def test_a_new_epoch_withdraws_the_earlier_report_of_a_table_that_is_complete_now(made: Shop) -> None:
    made.land(a=1)
    catalog = load_catalog(None)
    made.batch({A: 1})
    catalog.rename_table(A, "shop.elsewhere")
    made.route.tried_at_s = 0.0
    made.route.follow()
    catalog.rename_table("shop.elsewhere", A)
    earlier = made.said
    made.start()
    reported = [what.names for what in (*earlier, *made.said) if isinstance(what, TablesBehind)]
    assert reported == [frozenset(), {A}, frozenset()]
