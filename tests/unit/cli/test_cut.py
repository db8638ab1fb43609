"""`frazil cut`: consistent snapshots, as SQL, with tags, and the message when snapshots have expired."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyiceberg.table.update import RemoveSnapshotsUpdate

from frazil import clock
from frazil.cli.main import frazil
from frazil.commit.compare_and_swap import TableHandle, commit_snapshots
from frazil.commit.expiry import Pins, plan_expiry
from frazil.commit.snapshot_sets import TAG_PREFIX
from frazil.spec.load import find_stream
from frazil.spec.maintenance import Expiry
from frazil.table.catalogs import load_catalog
from frazil.timetext import format_utc
from tests.made_batches import EventTimes, MadeStream
from tests.made_routes import MadeRoute
from tests.made_routes import shop as routed_shop

HOUR_MS = 3_600_000
BEGIN_MS = (clock.now_ms() // HOUR_MS + 1) * HOUR_MS
"""After the tables were made, or their commits would be dated later than they ask."""


def at(hour: float) -> str:
    return format_utc(int(BEGIN_MS + (hour + 0.5) * HOUR_MS))


@pytest.fixture
def folder(tmp_path: Path, frazil_home: Path) -> Path:  # noqa: ARG001
    found = tmp_path / "streams"
    found.mkdir()
    return found


@pytest.fixture
def made(folder: Path) -> Callable[..., MadeStream]:
    """`made(name)` declares a stream of one partition."""

    def made(name: str, table: str | None = None) -> MadeStream:
        spec = {
            "name": name,
            "source": {"topics": [name], "format": "json", "bootstrap-servers": "127.0.0.1:1"},
            "table": f"demo.{table or name}",
            "schema": {"at": "timestamptz"},
            "event-time": "at",
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec))
        return MadeStream(find_stream(folder, name), now_ms=BEGIN_MS, partitions=1)

    return made


@pytest.fixture
def call(folder: Path) -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(frazil, ["cut", *words, "--streams", str(folder)])


@pytest.fixture
def cut(call: Callable[..., Result]) -> Callable[..., dict[str, Any]]:
    """`cut(*words)`: each table of the cut by its name."""

    def cut(*words: str) -> dict[str, Any]:
        done = call(*words, "--json")
        assert done.exit_code == 0, done.output
        return {table["table"]: table for table in json.loads(done.stdout)["tables"]}

    return cut


def land(stream: MadeStream, hour: int, *, bad: bool = True, event_hour: int | None = None) -> None:
    """Land the batch of an hour, with one invalid record."""
    stream.now_ms = BEGIN_MS + hour * HOUR_MS
    newest_us = (BEGIN_MS + (hour if event_hour is None else event_hour) * HOUR_MS) * 1000
    rejected = {0: [hour * 10]} if bad else {}
    stream.land({0: (hour * 10, hour * 10 + 10)}, rejected=rejected, times=EventTimes({0: newest_us}))


def offsets(table: dict[str, Any]) -> list[int]:
    """Return the offsets that a reader finds at the cut."""
    loaded = load_catalog(None).load_table(table["table"])
    if table["snapshot-id"] is None:
        return []
    return sorted(loaded.scan(snapshot_id=table["snapshot-id"]).to_arrow()["kafka_offset"].to_pylist())


def expire_before(handle: TableHandle, hour: int) -> None:
    table = handle.refresh()
    old = [s.snapshot_id for s in table.metadata.snapshots if s.timestamp_ms < BEGIN_MS + hour * HOUR_MS]
    table.catalog.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=old),))


def test_the_newest_consistent_snapshot_set_contains_all_that_has_landed(made, cut):
    stream = made("a")
    land(stream, 0)
    land(stream, 1)
    found = cut("a")
    assert list(found) == ["demo.a", "demo.a_dead_letters"]
    assert offsets(found["demo.a"]) == [*range(1, 10), *range(11, 20)]
    assert offsets(found["demo.a_dead_letters"]) == [0, 10]
    assert found["demo.a"]["batches"] == found["demo.a_dead_letters"]["batches"] == {"a": "1-2"}
    assert found["demo.a"]["watermarks-ms"] == {"a": BEGIN_MS + HOUR_MS}


def test_dead_letters_that_landed_before_their_batch_are_left_out(made, cut, monkeypatch):
    stream = made("a")
    land(stream, 0)

    def only_the_first(commits: Any, **how: Any) -> Any:
        return commit_snapshots(commits[:1], **how)

    with monkeypatch.context() as patch:
        patch.setattr("frazil.commit.committer.commit_snapshots", only_the_first)
        land(stream, 1)
    found = cut("a")
    assert offsets(found["demo.a"]) == list(range(1, 10))
    assert offsets(found["demo.a_dead_letters"]) == [0]


def test_a_cut_at_an_earlier_time_contains_the_batches_until_then(made, cut):
    stream = made("a")
    for hour in range(4):
        land(stream, hour, bad=hour != 1)
    for hour in range(4):
        found = cut("a", "--at", at(hour))
        bad = [offset for offset in (0, 20, 30) if offset < (hour + 1) * 10]
        assert offsets(found["demo.a_dead_letters"]) == bad
        assert offsets(found["demo.a"]) == [o for o in range((hour + 1) * 10) if o not in bad]


@pytest.mark.parametrize("which", ["demo.a", "demo.a_dead_letters"])
def test_a_rolled_back_table_makes_the_cut_fail_until_that_is_resolved(made, call, which):
    stream = made("a")
    land(stream, 0)
    table = load_catalog(None).load_table(which)
    kept = table.metadata.current_snapshot_id
    land(stream, 1)
    table.refresh().manage_snapshots().rollback_to_snapshot(kept).commit()
    done = call("a")
    assert f"table {which} was replaced, or rolled back to before the last commit of stream 'a'" in str(done.exception)


def test_commits_of_other_programs_are_in_the_snapshot_set_of_their_time(made, cut):
    stream = made("a")
    land(stream, 0)
    table = stream.tables.main.refresh()
    table.delete("kafka_offset = 5")
    assert 5 not in offsets(cut("a")["demo.a"])


def test_a_cut_reports_a_table_that_had_no_snapshot_at_that_time(made, cut, call):
    land(made("a"), 0)
    found = cut("a", "--at", at(-2))
    assert {name: table["snapshot-id"] for name, table in found.items()} == {
        "demo.a": None,
        "demo.a_dead_letters": None,
    }
    assert "-- demo.a had no snapshot at that time" in call("a", "--at", at(-2), "--sql", "spark").stdout


def test_frazil_cut_reports_that_the_requested_history_has_expired(made, cut, call):
    stream = made("a")
    for hour in range(4):
        land(stream, hour)
    expire_before(stream.tables.main, 2)
    assert offsets(cut("a", "--at", at(2))["demo.a_dead_letters"]) == [0, 10, 20]
    done = call("a", "--at", at(1))
    assert done.exit_code == 1
    assert f"the history of table demo.a before {at(1.5)} has expired" in str(done.exception)
    expire_before(stream.tables.dead_letters, 3)
    done = call("a", "--at", at(2))
    assert "the history of table demo.a_dead_letters before" in str(done.exception)
    assert offsets(cut("a")["demo.a_dead_letters"]) == [0, 10, 20, 30]


def test_frazil_cut_uses_the_newest_watermark_that_all_streams_reached(made, cut, call):
    first, second = made("a"), made("b")
    for hour in range(4):
        land(first, hour)
    for hour in range(3):
        land(second, hour, event_hour=hour // 2)
    done = call("a", "b", "--json")
    assert json.loads(done.stdout)["watermark-ms"] == BEGIN_MS + HOUR_MS
    found = cut("a", "b")
    assert found["demo.a"]["watermarks-ms"] == {"a": BEGIN_MS + HOUR_MS}
    assert offsets(found["demo.a_dead_letters"]) == [0, 10]
    assert offsets(found["demo.b_dead_letters"]) == [0, 10, 20]
    assert f"Cut by watermark: {at(0.5)}." in call("a", "b").stdout


def test_frazil_cut_uses_one_snapshot_for_a_table_of_two_streams(made, cut):
    first, second = made("a", "shared"), made("b", "shared")
    for hour in range(3):
        land(first, hour)
        if hour < 2:
            land(second, hour)
    found = cut("a", "b")
    assert found["demo.shared"]["streams"] == ["a", "b"]
    assert found["demo.shared"]["watermarks-ms"] == {"a": BEGIN_MS + HOUR_MS, "b": BEGIN_MS + HOUR_MS}
    assert len(offsets(found["demo.shared"])) == 36


def test_a_cut_of_several_streams_needs_a_watermark_of_each(made, call):
    land(made("a"), 0)
    made("b").land({0: (0, 3)})
    done = call("a", "b")
    assert done.exit_code == 1
    assert "stream 'b' has no watermark" in str(done.exception)


def test_a_tag_protects_its_cut_from_expiry_until_the_tag_is_removed(made, cut, call):
    stream = made("a")
    land(stream, 0)
    tagged = cut("a", "--tag", "year-end")
    for hour in range(1, 5):
        land(stream, hour)

    def expired(handle: TableHandle) -> tuple[int, ...]:
        now_ms = BEGIN_MS + 1000 * HOUR_MS
        settings = Expiry.model_validate({"keep": "1h", "at-least": 1})
        return plan_expiry(handle.refresh().metadata, settings, Pins(), table=handle.identifier, now_ms=now_ms).expire

    handles = {handle.identifier: handle for handle in stream.tables.targets.values()}
    for name, handle in handles.items():
        assert tagged[name]["snapshot-id"] not in expired(handle)
        assert handle.current().metadata.refs[f"{TAG_PREFIX}year-end"].snapshot_id == tagged[name]["snapshot-id"]
    again = call("a", "--tag", "year-end")
    assert again.exit_code == 1
    assert "already has a tag frazil-cut-year-end" in str(again.exception)
    done = call("a", "--untag", "year-end")
    assert done.output == "frazil-cut-year-end is removed from demo.a, demo.a_dead_letters\n"
    for name, handle in handles.items():
        assert tagged[name]["snapshot-id"] in expired(handle)
    assert call("a", "--untag", "year-end").exit_code == 1


def test_a_tag_that_one_table_refuses_is_left_on_none(made, call):
    stream = made("a")
    land(stream, 0)
    stream.tables.dead_letters.refresh().manage_snapshots().create_tag(
        stream.tables.dead_letters.current().metadata.snapshots[0].snapshot_id, f"{TAG_PREFIX}x"
    ).commit()
    assert call("a", "--tag", "x").exit_code == 1
    assert f"{TAG_PREFIX}x" not in stream.tables.main.refresh().metadata.refs


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("spark", "SELECT * FROM `default`.`demo`.`a` VERSION AS OF {id};"),
        ("trino", 'SELECT * FROM "default"."demo"."a" FOR VERSION AS OF {id};'),
        ("duckdb", "SELECT * FROM iceberg_scan('{location}', snapshot_from_id = {id});"),
    ],
)
def test_each_engine_gets_its_own_statement(made, cut, call, engine, said):
    land(made("a"), 0)
    table = cut("a")["demo.a"]
    line = said.format(id=table["snapshot-id"], location=table["metadata-location"])
    assert call("a", "--sql", engine).stdout.splitlines()[0] == line


@pytest.mark.parametrize("words", [("--untag", "x", "--tag", "y"), ("--json", "--sql", "spark"), ("--tag", "a b")])
def test_options_that_clash_are_a_mistake_of_usage(made, call, words):
    made("a")
    assert call("a", *words).exit_code == 2


@pytest.fixture
def shop(folder: Path) -> MadeRoute:
    spec = routed_shop()
    text = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    (folder / "shop.yaml").write_text(yaml.safe_dump({**text, "name": "shop"}))
    found = MadeRoute(find_stream(folder, "shop"), now_ms=BEGIN_MS)
    found.begin_route("a")
    return found


def counts(found: dict[str, Any]) -> dict[str, int]:
    return {name: len(offsets(table)) for name, table in found.items()}


def test_frazil_cut_includes_routed_tables_with_the_batches_of_the_default_table(shop: MadeRoute, cut: Any) -> None:
    for hour in range(3):
        shop.now_ms = BEGIN_MS + hour * HOUR_MS
        shop.run({"main": 1, "shop.orders": 2, **({"shop.raw_a": 3} if hour != 1 else {})}, rejected=1)
    found = counts(cut("shop"))
    assert found == {"shop.other": 3, "shop.orders": 6, "shop.raw_a": 6, "shop.other_dead_letters": 3}
    assert [*found][-1] == "shop.other_dead_letters"
    past = cut("shop", "--at", at(1))
    assert counts(past) == {"shop.other": 2, "shop.orders": 4, "shop.raw_a": 3, "shop.other_dead_letters": 2}
    assert past["shop.raw_a"]["batches"] == {"shop": "1-1"}
    assert cut("shop", "--at", at(-2))["shop.raw_a"]["snapshot-id"] is None


def test_a_batch_missing_from_one_routed_table_is_left_out_of_every_table_of_the_cut(shop: MadeRoute, cut: Any) -> None:
    shop.run({"main": 1, "shop.orders": 1})
    for _ in range(2):
        shop.batch({"main": 1, "shop.orders": 1, "shop.raw_a": 1}, rejected=1)
    assert shop.followers is not None
    late = shop.followers.waiting.pop("shop.raw_a")
    shop.follow()
    assert counts(cut("shop")) == {"shop.other": 1, "shop.orders": 1, "shop.raw_a": 0, "shop.other_dead_letters": 0}
    shop.followers.waiting["shop.raw_a"] = late
    shop.follow()
    assert counts(cut("shop")) == {"shop.other": 3, "shop.orders": 3, "shop.raw_a": 2, "shop.other_dead_letters": 2}


def test_a_cut_leaves_out_batches_that_a_table_got_in_one_snapshot_if_one_of_them_is_too_late(
    shop: MadeRoute, cut: Any
) -> None:
    """`shop.raw_a` got batches 2 and 3 together: it has no snapshot with the second alone."""
    shop.run({"main": 1, "shop.raw_a": 1})
    for hour in (1, 2):
        shop.now_ms = BEGIN_MS + hour * HOUR_MS
        shop.batch({"main": 1, "shop.raw_a": 1})
    shop.follow()
    assert counts(cut("shop", "--at", at(1))) == {
        "shop.other": 1,
        "shop.orders": 0,
        "shop.raw_a": 1,
        "shop.other_dead_letters": 0,
    }
    assert counts(cut("shop"))["shop.raw_a"] == counts(cut("shop"))["shop.other"] == 3


def test_a_rolled_back_routed_table_makes_the_cut_fail(shop: MadeRoute, call: Any) -> None:
    shop.run({"main": 1, "shop.raw_a": 1})
    table = load_catalog(None).load_table("shop.raw_a")
    kept = table.metadata.current_snapshot_id
    shop.run({"main": 1, "shop.raw_a": 1})
    table.refresh().manage_snapshots().rollback_to_snapshot(kept).commit()
    done = call("shop")
    assert "table shop.raw_a was rolled back to before the last commit of stream 'shop'" in str(done.exception)
    assert "frazil route shop --give-up shop.raw_a" in str(done.exception)


def test_a_tag_of_a_cut_is_set_on_all_tables_of_the_route(shop: MadeRoute, call: Any) -> None:
    shop.run({"main": 1, "shop.raw_a": 1})
    assert call("shop", "--tag", "whole").exit_code == 0
    for name in ("shop.other", "shop.orders", "shop.raw_a"):
        assert TAG_PREFIX + "whole" in load_catalog(None).load_table(name).metadata.refs
    assert "shop.raw_a" in call("shop", "--untag", "whole").stdout


def test_tables_of_a_route_that_is_no_longer_declared_are_named_as_missing(
    shop: MadeRoute, call: Any, folder: Path
) -> None:
    shop.run({"main": 1, "shop.raw_a": 1})
    declared = yaml.safe_load((folder / "shop.yaml").read_text())
    (folder / "shop.yaml").write_text(yaml.safe_dump({k: v for k, v in declared.items() if k != "route"}))
    done = call("shop")
    assert done.exit_code == 0
    assert "stream shop no longer has a route: its former tables are not in this cut" in done.stderr
