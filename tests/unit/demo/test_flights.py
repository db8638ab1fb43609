"""The demo's input is every flight of the source, in the format that include/streams/flights.yaml declares."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from demo import flights
from frazil.spec.load import load_stream

STREAMS = Path(__file__).parents[3] / "include" / "streams"


@pytest.fixture(scope="module")
def everything() -> pa.Table:
    return flights.read_flights()


def test_all_flights_are_read_with_the_columns_that_the_stream_declares(everything: pa.Table) -> None:
    spec = load_stream(STREAMS / "flights.yaml")
    assert everything.num_rows == 336_776
    assert everything.column_names == [column.name for column in spec.columns]
    for column in spec.columns:
        if column.required:
            assert everything[column.name].null_count == 0, column.name


def test_the_scheduled_departure_is_the_hour_in_utc_and_the_minute(everything: pa.Table) -> None:
    first = everything.filter(
        pc.and_(pc.equal(everything["flight"], 1545), pc.equal(everything["tailnum"], "N14228"))
    ).to_pylist()[0]
    assert first["scheduled_departure"] == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
    assert (first["origin"], first["dest"], first["dep_delay"], first["cancelled"]) == ("EWR", "IAH", 2, False)


def test_flights_without_an_aircraft_have_no_key_and_no_tailnum() -> None:
    row = {"carrier": "AA", "tailnum": None, "scheduled_departure": datetime(2013, 5, 1, 12, 30, tzinfo=UTC)}
    schema = pa.schema(
        [("carrier", pa.string()), ("tailnum", pa.string()), ("scheduled_departure", pa.timestamp("us", tz="UTC"))]
    )
    [message] = flights.messages(pa.Table.from_pylist([row], schema=schema))
    assert message.key is None
    assert json.loads(message.value) == {"carrier": "AA", "scheduled_departure": "2013-05-01T12:30:00Z"}


def test_2512_flights_have_no_key(everything: pa.Table) -> None:
    assert everything["tailnum"].null_count == 2_512


def test_the_backlog_and_the_live_flights_are_all_flights(everything: pa.Table) -> None:
    backlog, live = flights.split(everything)
    assert backlog.num_rows + live.num_rows == everything.num_rows
    assert pc.max(backlog["scheduled_departure"]).as_py() < flights.LIVE_FROM
    assert pc.min(live["scheduled_departure"]).as_py() >= flights.LIVE_FROM


def test_the_live_flights_fall_into_the_49_hours_up_to_new_year_in_new_york(everything: pa.Table) -> None:
    hours = flights.by_hour(flights.split(everything)[1])
    assert max(hours) < 53
    assert sum(part.num_rows for part in hours.values()) == 964 + 844 + 88
    for hour, part in hours.items():
        age = pc.min(part["scheduled_departure"]).as_py() - flights.LIVE_FROM
        assert int(age.total_seconds() // 3600) == hour


def test_held_back_flights_arrive_with_a_later_hour_and_none_is_lost(everything: pa.Table) -> None:
    hours = flights.by_hour(flights.split(everything)[1])
    sent = flights.hold_back(hours, hour=15, until=38, count=5)
    assert sent[15].num_rows == hours[15].num_rows - 5
    assert pa.concat_tables([sent[38].slice(hours[38].num_rows), sent[15]]) == hours[15]
    assert all(sent[hour] == hours[hour] for hour in hours if hour not in {15, 38})
