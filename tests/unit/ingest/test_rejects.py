"""The summary of rejected records does not depend on tasks and chunks."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from frazil.errors import SpecError
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.contract import OffsetRange, Rejects, StageResult
from frazil.ingest.dead_letters import DeadLetterTable, RejectSplitter, join_rejects
from frazil.ingest.decode import Rejection
from frazil.spec.iceberg import DEAD_LETTER_SCHEMA

Found = list[tuple[int, int, str]]
"""Rejected records by partition, offset and class."""

found = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.sampled_from("abc")), max_size=20, unique_by=lambda r: r[:2]
).map(sorted)
BY_PARTITION = [OffsetRange("t", partition, 0, 31) for partition in range(3)]


def summed(
    records: Found, *, cuts: list[int], accepted: dict[tuple[str, int], int], of_accepted: bool = False
) -> Rejects:
    """Sum the rejects of one task with several chunks: those that were not accepted, or those that were."""
    counter = RejectSplitter(BY_PARTITION, accepted)
    edges = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    for start, end in pairwise(edges):
        part = records[start:end]
        empty = BinaryColumn.of([b""] * len(part))
        chunk = RecordChunk(
            empty,
            empty,
            np.array([p for p, _, _ in part], np.int32),
            np.array([o for _, o, _ in part], np.int64),
            np.zeros(len(part), np.int64),
        )
        counter.add(chunk, [Rejection(i, name, f"why\n{name}") for i, (_, _, name) in enumerate(part)])
    return (counter.accepted if of_accepted else counter.new).result()


@given(found, st.lists(st.integers(0, 20), max_size=3), st.integers(0, 20), st.integers(0, 31))
def test_the_sum_of_rejects_does_not_depend_on_chunks_and_tasks(
    records: Found, cuts: list[int], split: int, bound: int
):
    accepted = {("t", 1): bound}
    whole = summed(records, cuts=[], accepted=accepted)
    tasks = [summed(part, cuts=cuts, accepted=accepted) for part in (records[:split], records[split:])]
    assert join_rejects(tasks) == whole
    counted = [(p, o, name) for p, o, name in records if p != 1 or o >= bound]
    assert dict(whole.counts) == Counter(name for _, _, name in counted)
    others = summed(records, cuts=cuts, accepted=accepted, of_accepted=True)
    assert Counter(whole.counts) + Counter(others.counts) == Counter(name for _, _, name in records)
    assert {(r.partition, r.offset) for r in whole.first} == {
        (p, min(o for q, o, _ in counted if q == p)) for p in {p for p, _, _ in counted}
    }
    assert all(
        (r.partition, r.offset, r.error_class) in counted and r.error == f"why {r.error_class}" for r in whole.samples
    )
    assert Counter(r.error_class for r in whole.samples) == {name: min(n, 3) for name, n in whole.counts.items()}


def test_rejects_survive_the_transfer_from_executor_to_driver():
    rejects = summed([(0, 4, "a"), (2, 5, "b")], cuts=[], accepted={})
    result = StageResult((), (), rejects=rejects, accepted=summed([(1, 4, "c")], cuts=[], accepted={}))
    assert StageResult.from_json(result.to_json()) == result


@pytest.mark.parametrize("name", ["replays", "discarded_by", "ours"])
def test_a_required_column_of_the_dead_letter_table_that_frazil_does_not_fill_is_reported(name: str) -> None:
    fields = {field.name: field for field in DEAD_LETTER_SCHEMA.fields}
    plain = fields.get(name, NestedField(99, name, StringType()))
    required = plain.model_copy(update={"required": True})
    schema = Schema(*{**fields, name: required}.values())
    with pytest.raises(SpecError, match=f"column {name} is required, but frazil does not fill it"):
        DeadLetterTable(schema, BY_PARTITION, stream="s", topic_ids={})
    DeadLetterTable(DEAD_LETTER_SCHEMA, BY_PARTITION, stream="s", topic_ids={})


def test_a_column_that_users_added_gets_the_tables_default() -> None:
    ours = NestedField(99, "ours", StringType(), required=True, initial_default="old", write_default="new")
    made = DeadLetterTable(Schema(*DEAD_LETTER_SCHEMA.fields, ours), BY_PARTITION, stream="s", topic_ids={})
    chunk = RecordChunk.of_values([b"x"])
    (row,) = made.rows(chunk, [Rejection(0, "NotJson", "it is not JSON")], 0).to_pylist()
    assert (row["ours"], row["replays"]) == ("new", None)
