"""Types of YAML values, paths and problems, and the base class of all declarations. A validator's ValueError is the end
of a sentence: `frazil.spec.problems` adds file, key and value before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import core_schema

from frazil.spec.units import MAX_SIZE_BYTES, format_bytes, format_duration, parse_bytes, parse_duration
from frazil.timetext import parse_zoned_moment

MAX_PERCENT = 99
MAX_TEXT_CHARACTERS = 100_000
"""Maximum length of a string whose key has no other limit. Certificates and schemas are the longest."""
MAX_DESCRIPTION_CHARACTERS = 10_000


def _parse_positive_duration(value: object) -> timedelta:
    if duration := parse_duration(value):
        return duration
    raise ValueError("is zero; write a duration above 0, such as 60s")


def _parse_positive_bytes(value: object) -> int:
    if size_bytes := parse_bytes(value):
        return size_bytes
    raise ValueError("is zero; write a size above 0, such as 128MiB")


def _parse_percent(value: object) -> object:
    text = str(value).strip().removesuffix("%").strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) > MAX_PERCENT:
        raise ValueError(f"is not a percentage from 0 to {MAX_PERCENT}, such as 50%")
    return int(text)


def _parse_start(value: object) -> object:
    return value if value in ("earliest", "latest") else parse_zoned_moment(value, prefix="earliest, latest or ")


def _convert_to_texts(value: object) -> object:
    """Convert numbers and booleans to text, which Kafka, Iceberg and Spark expect as properties."""
    if not isinstance(value, Mapping):
        return value
    texts = {
        k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items() if isinstance(v, int | float)
    }
    return {str(k): texts.get(k, v) for k, v in value.items()}


def _refuse_boolean(value: object) -> object:
    """Raise ValueError for booleans: pydantic would accept `true` as 1."""
    if isinstance(value, bool):
        raise ValueError("is not an integer")  # noqa: TRY004
    return value


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that keeps the value unless `check` raises ValueError."""

    def keep(value: object) -> object:
        check(value)
        return value

    return AfterValidator(keep)


@dataclass(frozen=True, slots=True)
class IntegerBounds:
    """Bounds of an integer. Pydantic's `Field` may lose a bound next to another upper bound or a validator."""

    minimum: int = 1
    maximum: int = 2**31 - 1

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(
            _refuse_boolean, core_schema.int_schema(ge=self.minimum, le=self.maximum)
        )


Count = Annotated[int, IntegerBounds()]
CountFromTwo = Annotated[int, IntegerBounds(minimum=2)]
Records = Annotated[int, IntegerBounds(maximum=2**63 - 1)]
"""A number of records, up to the largest number of offsets in a Kafka partition."""
Percentage = Annotated[int, IntegerBounds(maximum=100)]
"""A plain number from 1 to 100. `Percent` also accepts a percent sign."""


@dataclass(frozen=True, slots=True)
class YamlForm:
    """Describes in words how a value is written in YAML, for the configuration reference."""

    words: str


_DURATION_JSON = WithJsonSchema({"type": "string", "pattern": r"^(0|(\d+(\.\d+)?(ms|s|m|h|d))+)$", "examples": ["60s"]})


def _number_or_text(minimum: int, maximum: int, pattern: str, example: str) -> WithJsonSchema:
    number = {"type": "integer", "minimum": minimum, "maximum": maximum}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": pattern, "examples": [example]}]})


_BYTES_JSON = _number_or_text(1, MAX_SIZE_BYTES, r"^\d+(\.\d+)?\s*([KMGT]i?B|B)?$", "128MiB")
_DURATION_TEXT = PlainSerializer(format_duration, return_type=str, when_used="json")
_BYTES_TEXT = PlainSerializer(format_bytes, return_type=str, when_used="json")

Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), _DURATION_TEXT, _DURATION_JSON, YamlForm("duration: `60s`, `1h30m`")
]
PositiveDuration = Annotated[
    timedelta,
    BeforeValidator(_parse_positive_duration),
    _DURATION_TEXT,
    _DURATION_JSON,
    YamlForm("duration: `250ms`, `60s`"),
]
SIZE_FORM = YamlForm("size: `128MiB`, `1GB`, or bytes")
Bytes = Annotated[int, BeforeValidator(_parse_positive_bytes), _BYTES_TEXT, _BYTES_JSON, SIZE_FORM]
_PERCENT_JSON = _number_or_text(0, MAX_PERCENT, r"^\d{1,2}\s*%?$", "50%")
Percent = Annotated[int, BeforeValidator(_parse_percent), _PERCENT_JSON, YamlForm("percent: `50%`")]
Start = Annotated[
    Literal["earliest", "latest"] | datetime,
    BeforeValidator(_parse_start),
    YamlForm("`earliest`, `latest`, or a time with a zone"),
]
Moment = Annotated[datetime, BeforeValidator(parse_zoned_moment), YamlForm("time with a zone: `2013-12-30T00:00:00Z`")]
Properties = Annotated[
    dict[str, str],
    BeforeValidator(_convert_to_texts),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}),
    YamlForm("mapping of properties"),
]


Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
"""One or several names. A single name may be written without a list."""


class Model(BaseModel):
    """Base class of all declared models: snake_case in Python, kebab-case in YAML, no unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        str_max_length=MAX_TEXT_CHARACTERS,
    )
    short_form: ClassVar[str] = ""
    """The key to which a value without a mapping belongs; empty if only a mapping is allowed."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: object) -> object:
        return {cls.short_form: value} if cls.short_form and isinstance(value, str) else value

    def find_conflicts(self) -> Iterator[str]:
        """Yield the problems of values that are valid, but not together. Each is the end of a sentence."""
        yield from ()

    @model_validator(mode="after")
    def _check_conflicts(self) -> Self:
        for problem in self.find_conflicts():
            raise ValueError(problem)
        return self


def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field of a model, from its source. Only the schema and the reference need it."""
    import ast
    import inspect
    from textwrap import dedent

    descriptions: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Model):
            (parsed,) = ast.parse(dedent(inspect.getsource(base))).body
            for field, text in pairwise(parsed.body):  # type: ignore[attr-defined]  # a class
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(description))):
                        descriptions[name] = " ".join(description.split())
    return descriptions


FieldPath = tuple[str | int, ...]
_STEP = re.compile(r"\.?(?P<name>(?:[^.\[\]\\]|\\[.\[\]\\])+)|\[(?P<index>[0-9]{1,4})\]")
MAX_INDEX = 9999
_ALLOWED_FORMS = r"write field, outer.inner or items[0].inner, and \. for a dot within a name"


def parse_path(text: str) -> FieldPath:
    """Parse a path. Raises ValueError with the allowed forms."""
    path: list[str | int] = []
    position = 0
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None and re.match(r"\[-?[0-9]+\]", text[position:]):
            raise ValueError(f"has an index that is not between 0, the first element, and {MAX_INDEX:,}")
        if step is None or ((step["index"] is None) and text.startswith(".", position) is not bool(path)):
            raise ValueError(f"has a name with an empty part, or a bracket without an index; {_ALLOWED_FORMS}")
        path.append(re.sub(r"\\(.)", r"\1", step["name"]) if step["index"] is None else int(step["index"]))
        position = step.end()
    if not path or isinstance(path[0], int):
        raise ValueError(f"does not begin with a name; {_ALLOWED_FORMS}")
    if any(isinstance(name, str) and (not name.strip() or set(name) & set('"\\') or min(name) < " ") for name in path):
        raise ValueError("has a name that is blank or contains a quote, a backslash or a control character")
    return tuple(path)


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a path without indexes. Raises ValueError."""
    path = parse_path(text)
    if not all(isinstance(name, str) for name in path):
        raise ValueError("has an index, but each part must be an object; write field, or outer.inner")
    return tuple(map(str, path))


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem at `key`, a dotted path in the YAML. `value` is None if it must not be shown."""

    key: str
    value: object
    message: str


Rules = tuple[tuple[Callable[[Any], Iterator[Problem]], tuple[str, ...]], ...]
"""Rules of declared streams, each with the dotted keys of the parts that it needs."""


class InconsistentError(ValueError):
    """Raised with the problems found in a model. `frazil.spec.load` converts it to a SpecError."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(f"{p.key} {p.message}" for p in problems))
        self.problems = problems


def suggest_names(name: str, candidates: Mapping[str, object]) -> str:
    """Return the end of a message about an unknown name: the most similar known name, or all."""
    close = get_close_matches(name, candidates, n=1)
    return f"; did you mean {close[0]}?" if close else f" ({', '.join(candidates)})"
