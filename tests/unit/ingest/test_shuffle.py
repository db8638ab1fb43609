"""The shuffle writer of a row depends only on the row's partition and position."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform

from frazil.ingest.contract import OffsetRange, Shuffle, TargetTable
from frazil.ingest.parquet import FileLayout
from frazil.ingest.partitioning import Parcel, Shuffler, unpack_parcel

SCHEMA = Schema(t.NestedField(1, "x", t.DoubleType()), t.NestedField(2, "n", t.LongType(), required=True))
BY_X = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
FORMS = (SCHEMA.model_dump_json(), BY_X.model_dump_json(), UNSORTED_SORT_ORDER.model_dump_json())
LAYOUT = FileLayout.of(TargetTable(*FORMS, {}, "/f", 2**27), "main")
RANGES = (OffsetRange("t", 0, 0, 10_000), OffsetRange("t", 1, 0, 10_000))
ONE = "AAAAAAAA8D8="  # 1.0, as a single value of Iceberg's
HOT = Shuffle(4, {(ONE,): ((1, 0.25), (3, 1.0))})


def sent(values: list[float | None], *, pieces: int = 1, shuffle: Shuffle = HOT) -> tuple[Shuffler, list[Parcel]]:
    shuffler = Shuffler(shuffle, LAYOUT, RANGES, task=7)
    rows = pa.table([values, range(len(values))], schema=schema_to_pyarrow(SCHEMA))
    places = np.arange(len(values))
    parcels: list[Parcel] = []
    for piece in np.array_split(places, pieces):
        index = (piece % 2).astype(np.int32)
        parcels += shuffler(rows.take(pa.array(piece, pa.int64())), range_index=index, offsets=piece // 2)
    return shuffler, parcels


def by_writer(parcels: list[Parcel]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for parcel in parcels:
        found[parcel.writer] += unpack_parcel(parcel)["n"].to_pylist()
    return found


VALUES = st.lists(st.sampled_from([None, 0.0, -0.0, 1.0, 2.5, float("nan"), float("inf")]), max_size=50)


@given(VALUES, st.integers(1, 5))
def test_each_row_is_sent_once_and_to_the_same_writer_however_it_was_read(
    values: list[float | None], pieces: int
) -> None:
    shuffler, parcels = sent(values)
    whole, cut = by_writer(parcels), by_writer(sent(values, pieces=pieces)[1])
    assert sorted(n for rows in whole.values() for n in rows) == list(range(len(values)))
    assert {writer: sorted(rows) for writer, rows in cut.items()} == whole
    assert shuffler.sent == [len(whole[writer]) for writer in range(4)]
    assert shuffler.partitions == len({repr(value) for value in values})


@pytest.mark.parametrize("value", [None, 0.0, 2.5, float("nan")])
def test_a_partition_of_unknown_size_has_one_writer(value: float | None) -> None:
    assert len(by_writer(sent([value] * 100, pieces=3)[1])) == 1


def test_the_rows_of_a_hot_partition_are_split_among_its_writers() -> None:
    shares = {writer: len(rows) / 10_000 for writer, rows in by_writer(sent([1.0] * 10_000)[1]).items()}
    assert shares == pytest.approx({1: 0.25, 3: 0.75}, abs=0.02)


def test_a_shuffle_parcel_keeps_the_schema_with_its_field_ids() -> None:
    _, [parcel] = sent([None])
    assert (parcel.task, parcel.rows) == (7, 1)
    assert unpack_parcel(parcel).schema.equals(LAYOUT.arrow_schema, check_metadata=True)
