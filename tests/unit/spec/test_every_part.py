"""An invalid part of a declaration gets an error with file, key and what is expected there."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from frazil.aggregate.spec import AGGREGATIONS, AggregationSpec
from frazil.errors import SpecError
from frazil.spec.column import Column
from frazil.spec.formats import FORMATS
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from tests.unit.spec.conftest import SMALLEST

Part = tuple[str | int, ...]
FILE = Path("rides.yaml")
ODD: tuple[Any, ...] = (
    "x y",
    "",
    [1],
    [[]],
    5,
    -1,
    2.5,
    float("inf"),
    10**30,
    True,
    None,
    {},
    {"zz": 1},
    {"zz": {"zz": []}},
    {"": 1},
)
AGGREGATION = {"source": "demo.rides", "event-time": "at", "target": "demo.daily", "sql": "select 1"}


def models_in(annotation: Any, inside: Part = ()) -> Iterator[tuple[type[BaseModel], Part]]:
    """The models of a key, each with the path from there: an item of a list, an entry of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ("carrier",) if annotation is Column else inside
        return
    origin, inner = get_origin(annotation), get_args(annotation)
    below: Part = (0,) if origin is tuple else ("carrier",) if origin is not None and origin in MAPPINGS else ()
    for one in inner[-1:] if below == ("carrier",) else inner:
        yield from models_in(one, (*inside, *below))


MAPPINGS = {get_origin(Mapping[str, str]), dict}


def parts(model: type[BaseModel], above: Part = ()) -> Iterator[tuple[Part, type[BaseModel]]]:
    """Each key below a model, with the model that has it."""
    for field in model.model_fields.values():
        here = (*above, str(field.alias))
        yield here, model
        for inner, inside in models_in(field.annotation):
            yield from parts(inner, (*here, *inside))


def declared_with(part: Part, model: type[BaseModel], value: Any) -> dict[str, Any]:
    """The smallest stream with this in the place of the part."""
    declared: Any = copy.deepcopy(SMALLEST)
    formats = [name for name, one in FORMATS.items() if one is model]
    inner = declared
    for key, after in zip(part, [*part[1:], None], strict=True):
        if after is None:
            inner[key] = value
        elif not isinstance(inner, list) and not isinstance(inner.get(key), dict | list):
            inner[key] = [{}] if after == 0 else {}
        inner = inner[key] if isinstance(inner, dict) or key == 0 else inner
    if part[:2] == ("source", "format") and part[2:] not in ((), ("type",)):
        declared["source"]["format"]["type"] = (formats or ["json"])[0]
    return declared  # type: ignore[no-any-return]


def class_names(model: type[BaseModel]) -> set[str]:
    return {one.__name__ for _, one in parts(model)}


PYDANTIC = (
    r"Input should|Field required|Value error|valid dictionary|cannot be used|literal\[|tuple\[|function-|NoneType"
)


def check_sentences(text: str, keys: Sequence[str], classes: set[str]) -> None:
    """Check that each line has the file, a key from the file, and a readable sentence."""
    for line in text.splitlines():
        found = re.fullmatch(rf"{re.escape(str(FILE))}: ([\w.'-]+): (.+)", line)
        assert found, line
        assert not re.search(rf"\b({'|'.join(classes)})\b|{PYDANTIC}", line), line
        key, message = found.groups()
        assert key.split(".")[0] in keys, line
        assert len(message.split()) > 1, line


PARTS = list(parts(StreamSpec))


@pytest.mark.rotates(2)
@pytest.mark.parametrize(("part", "model"), PARTS, ids=[".".join(map(str, part)) for part, _ in PARTS])
def test_an_invalid_value_of_any_stream_key_is_reported_with_that_key(part: Part, model: type[BaseModel]) -> None:
    keys = [str(field.alias) for field in StreamSpec.model_fields.values()]
    classes = class_names(StreamSpec)
    for value in ODD:
        try:
            validate_stream(declared_with(part, model, value), FILE)
        except SpecError as error:
            check_sentences(str(error), keys, classes)


SECTIONS = [part for part, _ in PARTS if any(other[: len(part)] == part != other for other, _ in PARTS)]


@pytest.mark.parametrize("section", SECTIONS, ids=[".".join(map(str, part)) for part in SECTIONS])
def test_a_section_that_is_not_a_mapping_is_reported_with_its_own_key(section: Part) -> None:
    key = ".".join(map(str, section))
    for value in ("x y", [[]], 5):
        with pytest.raises(SpecError, match=f"^{FILE}: {re.escape(key)}[.:]|\n{FILE}: {re.escape(key)}[.:]"):
            validate_stream(declared_with(section, dict(PARTS)[section], value), FILE)


def test_the_settings_test_covers_all_sections_with_their_items_and_entries() -> None:
    walked = {".".join(map(str, part)) for part, _ in PARTS}
    assert {
        "dead-letters.circuit.share",
        "maintenance.alerts.lag",
        "schema.carrier.type",
        "sensitive.fields.carrier.keep-last",
        "source.format.registry.password",
        "source.headers.0.column",
    } <= walked


@pytest.mark.parametrize("key", [str(field.alias) for field in AggregationSpec.model_fields.values()][1:])
def test_an_invalid_value_of_any_aggregation_key_is_reported_with_that_key(key: str) -> None:
    for value in ODD:
        try:
            AGGREGATIONS.validate({**AGGREGATION, key: value}, FILE)
        except SpecError as error:
            check_sentences(str(error), [key], {"AggregationSpec"})
