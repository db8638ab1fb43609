"""The daily aggregates that the demo expects, computed from the source file with plain Python and numpy.

The expected and the written aggregates are exact. The mean is a sum of whole minutes, divided once. The 95th percentile
is the delay of one flight, by nearest rank (SQL's `percentile_disc`, numpy's `inverted_cdf`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from demo import landed

TABLE = "demo.flights_per_day"
SCHEMA = pa.schema(
    {
        "day": pa.date32(),
        "carrier": pa.string(),
        "origin": pa.string(),
        "flights": pa.int64(),
        "mean_dep_delay": pa.float64(),
        "p95_dep_delay": pa.float64(),
        "cancellations": pa.int64(),
    }
)


def expected(flights: pa.Table, days: Collection[date]) -> pa.Table:
    """Return the aggregates of these UTC days of scheduled departure, with the columns of SCHEMA.

    :param flights: from `demo.flights.read_flights`.
    """
    day = flights["scheduled_departure"].cast(pa.date32())
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for flight in flights.append_column("day", day).filter(_of(day, days)).to_pylist():
        groups[flight["day"], flight["carrier"], flight["origin"]].append(flight)
    rows = [dict(zip(SCHEMA.names, (*key, *_numbers(group)), strict=True)) for key, group in groups.items()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def differences(catalog: Catalog, flights: pa.Table, days: Collection[date]) -> int | None:
    """Count the rows of these days that are missing or wrong in the table; None if a day was never aggregated."""
    try:
        found = catalog.load_table(TABLE).scan().to_arrow()
    except NoSuchTableError:
        return None
    if not set(days) <= set(found["day"].to_pylist()):
        return None
    return landed.differences(expected(flights, days), found.filter(_of(found["day"], days)).select(SCHEMA.names))


def _of(column: pa.ChunkedArray, days: Collection[date]) -> pa.ChunkedArray:
    return pc.is_in(column, pa.array(days, pa.date32()))


def _numbers(flights: Sequence[dict[str, Any]]) -> tuple[int, float | None, float | None, int]:
    """Return the number of flights, mean delay, 95th percentile of the delay, and number of cancellations."""
    delays = [flight["dep_delay"] for flight in flights if flight["dep_delay"] is not None]
    mean = sum(delays) / len(delays) if delays else None
    p95 = float(np.quantile(delays, 0.95, method="inverted_cdf")) if delays else None
    return len(flights), mean, p95, sum(flight["cancelled"] for flight in flights)
