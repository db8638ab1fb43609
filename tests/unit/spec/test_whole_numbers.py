"""Integers in a declaration: the loader and the JSON Schema accept the same ones, within the same bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo

from frazil.errors import SpecError
from frazil.spec.load import validate_stream
from frazil.spec.values import IntegerBounds
from tests.unit.spec.test_every_part import PARTS, Part, declared_with

VALIDATOR = Draft202012Validator(json.loads(Path("include/streams/stream.schema.json").read_text()))
FILE = Path("rides.yaml")
KEYS = [
    (part, model, field) for part, model in PARTS for field in model.model_fields.values() if field.alias == part[-1]
]
NO_COUNTS = {"delete.values", "dead-letters.circuit.share"} | {
    f"{columns}.carrier.{key}" for columns in ("schema", "source.schema") for key in ("default", "null-if")
}
"""Values of records, and a percentage that may be written with its sign."""


def bounds(field: FieldInfo) -> Iterator[IntegerBounds]:
    """The bounds of a key, if whole numbers are its values."""
    inner = [item for part in get_args(field.annotation) if get_origin(part) is Annotated for item in get_args(part)]
    yield from (item for item in (*field.metadata, *inner) if isinstance(item, IntegerBounds))


def has_int(annotation: Any) -> bool:
    return annotation is int or any(has_int(part) for part in get_args(annotation))


BOUNDED = [(part, model, within) for part, model, field in KEYS for within in bounds(field)]


def test_all_numbers_of_a_declaration_have_bounds() -> None:
    sizes = {part for part, _, field in KEYS if "size: " in str(field.metadata)}
    unbounded = {part for part, _, field in KEYS if has_int(field.annotation) and not list(bounds(field))}
    assert {".".join(map(str, part)) for part in unbounded - sizes} == NO_COUNTS


@pytest.mark.parametrize(("part", "model", "within"), BOUNDED, ids=[".".join(map(str, p)) for p, _, _ in BOUNDED])
def test_a_number_out_of_range_or_a_boolean_is_refused_by_the_loader_and_the_schema(
    part: Part, model: type[BaseModel], within: IntegerBounds
) -> None:
    key = ".".join(map(str, part))
    for value in (within.minimum - 1, within.maximum + 1, 10**30, True, False):
        declared = declared_with(part, model, value)
        with pytest.raises(SpecError, match=rf"{key}: .*(is below|is above|is not an integer)"):
            validate_stream(declared, FILE)
        assert any(_mentions(error, part[-1]) for error in VALIDATOR.iter_errors(declared)), value


def _mentions(error: Any, key: object) -> bool:
    return key in error.absolute_path or any(_mentions(inner, key) for inner in error.context)


@given(
    pair=st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)),
    distance=st.integers(-2, 2),
    value=st.booleans() | st.integers() | st.none(),
)
def test_exactly_the_whole_numbers_within_the_bounds_are_taken(
    pair: tuple[int, int], distance: int, value: int | bool | None
) -> None:
    within = IntegerBounds(min(pair), max(pair))
    model: Any = create_model(
        "Any", number=(Annotated[int, within], ...), perhaps=(Annotated[int, within] | None, None)
    )
    validator = Draft202012Validator(model.model_json_schema())
    for tried in (value, within.minimum + distance, within.maximum + distance):
        valid = isinstance(tried, int) and not isinstance(tried, bool) and within.minimum <= tried <= within.maximum
        for key, is_valid in (("number", valid), ("perhaps", valid or tried is None)):
            made = {"number": within.minimum, key: tried}
            assert validator.is_valid(made) == is_valid
            if is_valid:
                assert getattr(model.model_validate(made), key) == tried
            else:
                with pytest.raises(ValidationError):
                    model.model_validate(made)
