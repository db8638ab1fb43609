"""This version and the one before can read what journals contain."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from frazil.ingest.contract import StagedFile

STAGED = StagedFile(
    target="main",
    path="s3://bucket/t/data/part-0.parquet",
    records=2,
    bytes=1000,
    schema_id=0,
    spec_id=0,
    sort_order_id=None,
    partition=("AAAAAA==", None),
    column_sizes={1: 100},
    value_counts={1: 2},
    null_value_counts={1: 0},
    nan_value_counts={},
    lower_bounds={1: "AA=="},
    upper_bounds={1: "AQ=="},
    split_offsets=(4,),
)


def through_json(file: StagedFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(file.to_json()))
    return found


def test_a_staged_data_file_is_serialized_as_in_earlier_versions() -> None:
    assert "content" not in through_json(STAGED)
    assert StagedFile.from_json(through_json(STAGED)) == STAGED
    assert StagedFile.from_json(through_json(STAGED)).content == "data"


def test_a_staged_file_with_unknown_content_is_not_taken_for_rows() -> None:
    deletes = through_json(replace(STAGED, content="deletes"))  # type: ignore[arg-type]  # a later version's
    assert deletes["content"] == "deletes"
    with pytest.raises(
        ValueError, match=r"part-0.parquet has the content 'deletes', which this version of frazil cannot commit"
    ):
        StagedFile.from_json(deletes)
