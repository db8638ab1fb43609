"""Several JSON objects in one record: all become rows, in their order, or the record is one dead letter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, number_rows_in_records
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.json import lines

SCHEMA = Schema(NestedField(1, "x", LongType(), required=True), NestedField(2, "s", StringType(), required=False))
ONE = create_decoder("json", SCHEMA, {})
LINES = create_decoder({"type": "json", "lines": True}, SCHEMA, {})
GOOD = (
    b'{"x": 1}',
    b' {"x": 2, "s": "a\\nb"}\t',
    '{"x": 3, "s": "é"}\r'.encode(),
    b'{"s": null, "x": 4, "more": [{}]}',
)
BAD = (b'{"x": "one"}', b'{"s": "a"}', b"[1]", b'{"x": 1', b'{"x": 1} {"x": 2}', b"\xff", b'{"x": 1}\x00')
BLANK = (b"", b" ", b"\r", b"\t \r")
RECORDS = st.none() | st.lists(st.sampled_from((*GOOD, *GOOD, *BLANK, *BAD)), max_size=6).map(b"\n".join)


def outcomes(decoded: DecodedChunk, count: int) -> list[Any]:
    """The rows of each record with their numbers, or the class and the text of its one error."""
    found: list[Any] = [[] for _ in range(count)]
    for place, number, row in zip(
        decoded.record_indexes.tolist(),
        number_rows_in_records(decoded.record_indexes).tolist(),
        decoded.rows.to_pylist(),
        strict=True,
    ):
        assert len(found[place]) == number
        found[place].append((row["x"], row["s"]))
    for rejection in decoded.rejections:
        assert found[rejection.index] == []
        found[rejection.index] = (rejection.error_class, rejection.error)
    return found


def alone(value: bytes | None) -> Any:
    """Return a record's outcome, line by line."""
    parts = [line for line in (value or b"").split(b"\n") if line.strip(b" \t\r")]
    if not parts:
        return outcomes(ONE(RecordChunk.of_values([value])), 1)[0]
    found = outcomes(ONE(RecordChunk.of_values(parts)), len(parts))
    for number, of in enumerate(found, 1):
        if isinstance(of, tuple):
            return (of[0], f"line {number}: {of[1]}" if len(parts) > 1 else of[1])
    return [row for rows in found for row in rows]


@given(st.lists(RECORDS, max_size=12), st.sampled_from([1, 3, 500_000]))
def test_each_line_decodes_as_if_alone_and_a_bad_line_rejects_its_record(
    values: list[bytes | None], at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "TARGET_LINES", at_once)
        found = LINES(RecordChunk.of_values(values))
        assert outcomes(found, len(values)) == [alone(value) for value in values]
    backwards = RecordChunk.of_values(values).slice(0, len(values))
    taken = RecordChunk.of_column(backwards.values.take(np.arange(len(values))[::-1]))
    assert outcomes(LINES(taken), len(values)) == [alone(value) for value in reversed(values)]


def test_a_record_of_very_many_lines_is_one_dead_letter_and_the_others_land() -> None:
    limit = lines.MAX_LINES
    found = LINES(
        RecordChunk.of_values([b"\n" * limit, b'{"x": 1}\n' * (limit - 1), b'{"x": 1}' + b"\n" * (limit - 1)])
    )
    rejected, rows, one = outcomes(found, 3)
    assert rejected == ("TooManyLines", "the value has more than 100,000 lines")
    assert (len(rows), one) == (limit - 1, [(1, None)])


def test_one_frame_precedes_all_lines_of_a_value() -> None:
    framed = create_decoder({"type": "json", "framing": "confluent", "lines": True}, SCHEMA, {})
    found = framed(RecordChunk.of_values([b'{"x": 1}', b'\0\0\0\0\7{"x": 1}\n{"x": 2}']))
    assert [of if isinstance(of, list) else of[0] for of in outcomes(found, 2)] == ["NotFramed", [(1, None), (2, None)]]
