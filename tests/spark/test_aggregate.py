"""A daily aggregation on real tables: each way to run a day writes the same rows, never from an older snapshot."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from demo import aggregates
from demo.flights import read_flights
from frazil.aggregate import run as aggregate
from frazil.aggregate.day_input import choose_input, find_aggregated_days
from frazil.aggregate.run import DayOutcome, DayRun, aggregate_day
from frazil.aggregate.spec import AggregationSpec, load_aggregation
from frazil.errors import SchemaIncompatible, SpecError
from frazil.lineage.jobs import openlineage_jobs
from frazil.table.catalogs import load_catalog
from tests.lineage_backend import tracing

pytestmark = pytest.mark.usefixtures("shared_home")

CHECKOUT = Path(__file__).resolve().parents[2]
DAY = date(2013, 12, 30)
START = datetime(2013, 12, 30, tzinfo=UTC)
SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False), pa.field("amount", pa.int64())])


class Shop:
    """A table of amounts, and an aggregation of it that is this test's alone."""

    def __init__(self, spark: Any, name: str) -> None:
        self.spark, self.catalog = spark, load_catalog(None)
        self.catalog.create_namespace_if_not_exists("aggregate")
        self.source: Table = self.catalog.create_table(f"aggregate.{name}", SCHEMA)
        self.spec = self.aggregation(f"{name}_per_day")

    def aggregation(self, name: str) -> AggregationSpec:
        sql = "SELECT amount % 2 = 0 AS even, count(*) AS sales, sum(amount) AS total FROM source_day GROUP BY 1"
        source = ".".join(self.source.name())
        return AggregationSpec.model_validate(
            {"name": name, "source": source, "event-time": "at", "target": f"aggregate.{name}", "sql": sql}
        )

    def sell(self, *amounts: int, at: datetime = START) -> None:
        self.source.append(pa.Table.from_pylist([{"at": at, "amount": amount} for amount in amounts], schema=SCHEMA))

    def given(self) -> Any:
        return choose_input(self.catalog, self.spec, DAY, ())

    def run(self, given: Any = None, *, day: date = DAY, spec: AggregationSpec | None = None) -> DayOutcome:
        return aggregate_day(self.spark, DayRun(self.catalog, spec or self.spec, day, given or self.given()))

    def target(self, spec: AggregationSpec | None = None) -> Table:
        return self.catalog.load_table((spec or self.spec).target)

    def rows(self, spec: AggregationSpec | None = None) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self.target(spec).scan().to_arrow().to_pylist())


@pytest.fixture
def shop(spark: Any, request: pytest.FixtureRequest) -> Shop:
    return Shop(spark, re.sub(r"\W", "_", request.node.name.removeprefix("test_")))


def test_a_day_is_its_24_hours_in_utc_and_a_second_run_changes_nothing(shop: Shop) -> None:
    shop.sell(1, 2, 3)
    shop.sell(4, at=START + timedelta(days=1, microseconds=-1))
    shop.sell(5, at=START + timedelta(days=1))
    shop.sell(7, at=START - timedelta(microseconds=1))
    assert shop.run().written
    assert shop.rows() == [(DAY, False, 2, 4), (DAY, True, 2, 6)]
    assert shop.run().written
    assert shop.rows() == [(DAY, False, 2, 4), (DAY, True, 2, 6)]
    assert shop.run(day=DAY + timedelta(days=1)).written
    assert len(shop.rows()) == 3
    spec, schema = shop.target().spec(), shop.target().schema()
    assert [(str(f.transform), schema.find_column_name(f.source_id)) for f in spec.fields] == [("identity", "day")]


def test_the_aggregates_snapshot_and_its_lineage_event_name_their_input(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sell(1)
    given = shop.given()
    shop.sell(2)
    with (
        tracing(monkeypatch) as received,
        openlineage_jobs() as jobs,
        DayRun(shop.catalog, shop.spec, DAY, given).report(jobs),
    ):
        shop.run(given)
    assert [event["eventType"] for event in received] == ["START", "COMPLETE"]
    (read,), (out,) = received[1]["inputs"], received[1]["outputs"]
    assert read["facets"]["version"]["datasetVersion"] == str(given.snapshot_id)
    assert out["facets"]["version"]["datasetVersion"] == str(shop.target().current_snapshot().snapshot_id)  # type: ignore[union-attr]
    assert out["outputFacets"]["outputStatistics"]["rowCount"] == 1
    summary = shop.target().current_snapshot().summary  # type: ignore[union-attr]
    assert {key: value for key, value in summary.additional_properties.items() if key.startswith("frazil.")} == {
        "frazil.aggregation": shop.spec.name,
        "frazil.day": "2013-12-30",
        "frazil.input-table": shop.spec.source,
        "frazil.input-snapshot-id": str(given.snapshot_id),
        "frazil.input-sequence-number": "1",
        "frazil.input-revisions": "none",
    }
    assert shop.rows() == [(DAY, False, 1, 1)], "and nothing that came after that snapshot"


def test_a_day_that_became_empty_is_emptied(shop: Shop) -> None:
    shop.sell(1, 2)
    shop.run()
    shop.source.delete("amount > 0")
    assert shop.run().written
    assert shop.rows() == []
    # A day that never had a row is known to be done as well: no one asks for it again.
    assert shop.run(day=date(2013, 12, 29)).written
    done = find_aggregated_days(shop.target().metadata, shop.spec.name, source=shop.source.refresh().metadata)
    assert set(done.days) == {DAY, date(2013, 12, 29)}


def test_late_rows_and_a_second_run_come_to_the_same_as_one_run_at_the_end(shop: Shop) -> None:
    shop.sell(1, 2)
    shop.run()
    shop.sell(3, 4, 6)
    shop.run()
    once = shop.aggregation("once_at_the_end")
    shop.run(spec=once)
    assert shop.rows() == shop.rows(once) == [(DAY, False, 2, 4), (DAY, True, 3, 12)]


def test_an_older_input_writes_nothing_and_reports_it_unless_the_source_was_rolled_back(shop: Shop) -> None:
    shop.sell(1)
    older = shop.given()
    shop.sell(2)
    shop.run()
    after = shop.rows()
    outcome = shop.run(older)
    assert not outcome.written
    assert "2013-12-30 was not changed: it was computed from a newer state" in outcome.sentence
    assert shop.rows() == after
    assert shop.run(older, day=DAY + timedelta(days=1)).written, "another day stands for itself"
    shop.source.refresh().manage_snapshots().set_current_snapshot(snapshot_id=older.snapshot_id).commit()
    assert shop.run(older).written
    assert shop.rows() == [(DAY, False, 1, 1)]


@pytest.mark.parametrize("emptied", [False, True])
def test_the_newer_input_wins_if_two_aggregation_runs_overlap(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, emptied: bool
) -> None:
    shop.sell(1)
    shop.run()
    older = shop.given()
    if emptied:
        shop.source.delete("amount > 0")
    else:
        shop.sell(2)
    newer, overwrite, overtaken = shop.given(), aggregate._overwrite, []

    def overtake(*arguments: Any, **named: Any) -> bool:
        if not overtaken:
            overtaken.append(True)
            assert shop.run(newer).written
        return overwrite(*arguments, **named)

    monkeypatch.setattr(aggregate, "_overwrite", overtake)
    assert not shop.run(older).written
    assert shop.rows() == ([] if emptied else [(DAY, False, 1, 1), (DAY, True, 1, 2)])


def test_sql_that_cannot_be_used_is_named_and_writes_nothing(shop: Shop) -> None:
    shop.sell(1)
    with pytest.raises(SpecError, match=f"aggregation {shop.spec.name}: .*no_such"):
        shop.run(spec=shop.spec.model_copy(update={"sql": "SELECT no_such FROM source_day"}))
    with pytest.raises(SpecError, match=r"Syntax error at or near 'thrice'.*line 2, pos \d+"):
        shop.run(spec=shop.spec.model_copy(update={"sql": "SELECT amount,\n amount twice thrice FROM source_day"}))
    with pytest.raises(SpecError, match="when"):
        shop.run(spec=shop.spec.model_copy(update={"event_time": "when"}))
    shop.run()
    with pytest.raises(SchemaIncompatible, match="do not fit the table"):
        shop.run(spec=shop.spec.model_copy(update={"sql": "SELECT 1 AS other FROM source_day"}))
    assert shop.rows() == [(DAY, False, 1, 1)]


@pytest.fixture
def flights(spark: Any) -> tuple[Callable[[date], None], Catalog, pa.Table]:
    """`run(day)`, the catalog, and all flights; those of the year's last two weeks are in a table."""
    catalog, everything = load_catalog(None), read_flights()
    catalog.create_namespace_if_not_exists("demo")
    recent = everything.slice(everything.num_rows - 13_000)
    source = catalog.create_table("demo.flights", recent.schema)
    source.append(recent.cast(schema_to_pyarrow(source.schema(), include_field_ids=False)))
    spec = load_aggregation(CHECKOUT / "include" / "aggregations" / "flights_per_day.yaml")
    given = choose_input(catalog, spec, DAY, ())
    return lambda day: print(aggregate_day(spark, DayRun(catalog, spec, day, given))), catalog, everything


def test_the_demos_aggregates_are_those_of_the_source_file(
    flights: tuple[Callable[[date], None], Catalog, pa.Table],
) -> None:
    run, catalog, everything = flights
    days = [DAY, date(2013, 12, 31)]
    assert aggregates.expected(everything, days).num_rows == 66
    for day in days:
        assert aggregates.differences(catalog, everything, days) is None, f"{day} was not made yet"
        run(day)
    assert aggregates.differences(catalog, everything, days) == 0
    catalog.load_table(aggregates.TABLE).delete("carrier = 'AA' and origin = 'JFK'")
    assert aggregates.differences(catalog, everything, days) == 2
