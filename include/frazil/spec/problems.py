"""Turns pydantic's errors into sentences for the author of the YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from frazil.safe_text import shorten
from frazil.spec.column import Column, convert_column
from frazil.spec.formats import FORMATS
from frazil.spec.model import STREAM_NAME, StreamSpec
from frazil.spec.property_rules import is_secret
from frazil.spec.rules import overlaps
from frazil.spec.values import InconsistentError, Problem

MAX_PROBLEMS = 50

_CREDENTIALS = re.compile(r"""(?<![^\s'"])[^\s'"]*@""")
"""Text that ends with `@`, such as credentials in front of a host."""

_PLACEHOLDERS: Mapping[str, Any] = {
    "name": "stand-in",
    "source": {"bootstrap-servers": "stand-in:9092"},
    "table": {"identifier": "stand.in"},
    "event-time": {"column": "stand-in"},
}
MAX_LINE_CHARACTERS = 2000
_FORMAT = ("source", "format")

_MEANINGS = {
    "union_tag_not_found": f"has no type; write one of {', '.join(FORMATS)}",
    "model_attributes_type": f"is not a format; write {', '.join(FORMATS)}, or a mapping with type",
    "extra_forbidden": "is an unknown key",
    "missing": "is missing",
    "string_type": "is not text",
    "int_type": "is not an integer",
    "float_type": "is not a number",
    "int_parsing": "is not an integer",
    "int_parsing_size": "is too large",
    "int_from_float": "is not an integer",
    "finite_number": "is not an integer",
    "bool_type": "is not true or false",
    "bool_parsing": "is not true or false",
    "tuple_type": "is not a list",
    "dict_type": "is not a mapping",
    "model_type": "is not a mapping",
    "string_too_short": "is empty",
    "string_too_long": "is too long; write at most {max_length} characters",
    "too_short": "is empty; write at least one",
}

_BOUNDS = {
    "greater_than": ("not above", "gt"),
    "greater_than_equal": ("below", "ge"),
    "less_than": ("not below", "lt"),
    "less_than_equal": ("above", "le"),
}


def describe(error: ValidationError, declared: Mapping[str, Any], path: Path, file_of: Callable[[str], Path]) -> str:
    """Return one line per problem, without secrets. `file_of` returns the file that sets a key."""
    problems = _collect_problems(error, declared)
    keys = {problem.key for problem in problems}
    if partial := complete(error, declared, path.parent):
        problems += [problem for problem in partial.problems if problem.key not in keys]
    lines = [f"{file_of(problem.key)}: {_format_line(problem)}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"{path}: {len(problems) - MAX_PROBLEMS:,} more problems; fix these first")
    return "\n".join(lines)


def _format_line(problem: Problem) -> str:
    value_text = "" if problem.value is None else f"{_format_value(problem.value)} "
    return shorten(f"{problem.key}: {value_text}{_remove_credentials(problem.message)}", MAX_LINE_CHARACTERS)


def _remove_credentials(text: str) -> str:
    """Replace the scheme and `user:password@` in front of each host with `…@`."""
    return _CREDENTIALS.sub(lambda match: "…@" if ":" in match[0] else match[0], text)


def _format_value(value: object) -> str:
    return shorten(_remove_credentials(repr(value)), 80)


def _collect_problems(error: ValidationError, declared: Mapping[str, Any]) -> list[Problem]:
    """Translate pydantic's errors into problems. Omits a missing key if an unknown key probably is its misspelling."""
    errors = [details for details in error.errors() if details["type"] != "too_short" or not details["input"]]
    meant = {
        (*details["loc"][:-1], _find_closest_key(details["loc"]))
        for details in errors
        if details["type"] == "extra_forbidden"
    }
    relevant = [details for details in errors if details["type"] != "missing" or details["loc"] not in meant]
    problems: list[Problem] = []
    for union, of_union in groupby(relevant, lambda details: _find_union(details["loc"])):
        branches = list(of_union)
        inside = [details for details in branches if len(details["loc"]) > len(union) + 1]
        if union and not inside:
            merged = [problem for details in branches for problem in _translate_error(details, declared)]
            words = [problem.message.removeprefix("is not ").removeprefix("allowed; write ") for problem in merged]
            kinds, _, hints = zip(*(word.partition("; ") for word in words), strict=True)
            message = "; ".join([f"is neither {' nor '.join(kinds)}", *filter(None, hints)])
            problems.append(Problem(merged[0].key, merged[0].value, message))
        else:
            chosen = inside if union else branches
            problems += (problem for details in chosen for problem in _translate_error(details, declared))
    return problems


@dataclass(frozen=True, slots=True)
class PartialStream:
    """An invalid declaration, with placeholders for its invalid parts."""

    spec: StreamSpec
    invalid: frozenset[str]
    """The dotted keys of the invalid parts."""
    problems: tuple[Problem, ...]
    """The problems between its valid parts."""

    def is_valid(self, *keys: str) -> bool:
        """Return whether no problem is about the parts with these dotted keys."""
        invalid = {*self.invalid, *(problem.key for problem in self.problems)}
        return not any(overlaps(key, problem) for key in keys for problem in invalid)


def complete(error: ValidationError, declared: Mapping[str, Any], folder: Path) -> PartialStream | None:
    """Validate an invalid declaration again, with placeholders for the parts that `error` names. None if impossible.

    Pydantic checks the problems between parts only if each part is valid.
    """
    locations = _find_locations(error)
    while True:
        problems: list[Problem] = []
        invalid = frozenset(_format_key(location, declared) for location in locations)
        context = {"folder": folder, "invalid": invalid, "problems": problems}
        try:
            valid = _with_placeholders(declared, locations)
            spec = StreamSpec.model_validate(valid, by_alias=True, by_name=False, context=context)
        except ValidationError as error_:
            failing = _find_locations(error_)
            # A mapping without a required key is invalid as a whole.
            new_locations = {part[:-1] if part in locations else part for part in failing} - {(), *locations}
            if not new_locations:
                return None
            locations += new_locations
        else:
            return PartialStream(spec, invalid, tuple(problems))


def _find_locations(error: ValidationError) -> list[tuple[int | str, ...]]:
    return [_remove_union_members(details["loc"]) for details in error.errors() if details["loc"]]


def _with_placeholders(declared: Mapping[str, Any], locations: Iterable[Sequence[int | str]]) -> dict[str, Any]:
    valid: dict[str, Any] = {key: _copy_mappings(value) for key, value in declared.items() if isinstance(key, str)}
    columns = valid.get("schema")
    columns_ = dict(columns) if isinstance(columns, dict) else {}
    names = list(columns_)
    for location in locations:
        first, *inner_steps = location
        if first == "schema" and inner_steps and isinstance(inner_steps[0], int) and inner_steps[0] < len(names):
            name = names[inner_steps[0]]
            columns_[name] = _placeholder_column(str(name), columns_[name])
        elif first != "schema":
            _remove_part(valid, location)
        elif not inner_steps:
            columns_ = {}
    named_columns = [c if isinstance(c, Column) else convert_column(str(name), c) for name, c in columns_.items()]
    valid["schema"] = tuple(named_columns) or (Column(name="stand-in", type="timestamptz"),)
    return _add_placeholders(valid, _PLACEHOLDERS)


def _placeholder_column(name: str, declared: object) -> Column:
    """Return an invalid column without its type, and without the settings whose rules depend on the type."""
    if isinstance(declared, Column):  # another part of the column is invalid, too
        return declared
    converted = convert_column(name, declared)
    mapping = converted if isinstance(converted, Mapping) else {}
    column = Column.model_construct(name=name, type="", required=bool(mapping.get("required")), doc=None)
    try:
        valid = Column.model_validate(
            {"name": "stand-in", "type": "string", "from": mapping.get("from")}, by_alias=True
        )
    except ValidationError:
        return column
    return column.model_copy(update={"from_": valid.from_})


def _remove_part(valid: dict[str, Any], location: Sequence[int | str]) -> None:
    inner: Any = valid
    for part, below in zip(location, [*location[1:], None], strict=True):
        if not isinstance(inner, dict) or part not in inner:
            return
        if below is None or not isinstance(inner[part], dict):
            del inner[part]
            return
        inner = inner[part]


def _add_placeholders(valid: dict[str, Any], stand_ins: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in stand_ins.items():
        if isinstance(value, Mapping) and isinstance(valid.get(key, {}), dict):
            valid[key] = _add_placeholders(valid.get(key, {}), value)
        else:
            valid.setdefault(key, value)
    return valid


def _copy_mappings(value: Any) -> Any:
    return {key: _copy_mappings(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _translate_error(details: ErrorDetails, declared: Mapping[str, Any]) -> Iterator[Problem]:
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InconsistentError):
        yield from cause.problems
        return
    key = _format_key(details["loc"], declared)
    value = details["input"]
    if details["type"] == "union_tag_invalid":
        key, value = (
            f"{key}.type" if isinstance(_find_value(declared, _FORMAT), Mapping) else key,
            details["ctx"]["tag"],
        )
    unshown = {"missing", "dict_type", "string_too_long"}
    if is_secret(key) or details["type"] in unshown or not isinstance(value, str | int | float):
        value = None  # nested values, and text in place of properties, may hold a secret
    if details["type"] == "extra_forbidden":
        location = details["loc"]
        allowed = _allowed_keys(location[:-1])
        meant = _find_closest_key(location)
        hint = f"; did you mean {meant}?" if meant else ""
        yield Problem(key, None, f"is an unknown key{hint} (allowed: {', '.join(allowed)})")
    else:
        message = describe_error(details)
        yield Problem(key, None if isinstance(value, str) and repr(value) in message else value, message)


def _find_value(declared: Mapping[str, Any], path: Iterable[str]) -> object:
    inner: object = declared
    for part in path:
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner


def describe_error(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if (cause := context.get("error")) is not None:
        return str(cause)
    if kind in {"literal_error", "enum"}:
        return f"is not allowed; write {context['expected'].replace(chr(39), '')}"
    if kind == "union_tag_invalid":
        return f"is not allowed; write {context['expected_tags'].replace(chr(39), '')}"
    if kind == "string_pattern_mismatch" and context["pattern"] == STREAM_NAME:
        return "is not a stream name; write at most 63 lower-case letters, digits, '-' and '_', beginning with a letter"
    if kind in _BOUNDS:
        word, bound = _BOUNDS[kind]
        return f"is {word} {context[bound]}"
    meaning = _MEANINGS.get(kind, f"cannot be used: {details['msg']}")
    meaning = meaning.replace("{max_length}", f"{context.get('max_length', 0):,}")
    if details["input"] is None and kind in {"model_type", "string_type", "tuple_type", "dict_type"}:
        meaning = "is empty"
    elif kind == "string_type" and isinstance(details["input"], int | float):
        meaning += "; put it in quotes"
    elif kind == "string_type" and _is_split_name(details):
        meaning += f"; write the whole name as one key: {details['loc'][-1]}.{next(iter(details['input']), '…')}: …"
    return f"{meaning}{_suggest_mapping(details)}" if kind == "model_type" else meaning


def _is_split_name(details: ErrorDetails) -> bool:
    """Return whether a property's dotted name became nested mappings."""
    *parts, name = details["loc"]
    return isinstance(details["input"], Mapping) and "properties" in parts and not is_secret(str(name))


def _suggest_mapping(details: ErrorDetails) -> str:
    """Return a hint with a mapping's keys.

    If only one key is required, the hint shows the written word as its value.
    """
    model = _find_model(details["loc"])
    needed = [field for field in model.model_fields.values() if field.is_required()]
    written = details["input"]
    is_word = len(needed) == 1 and isinstance(written, str) and re.fullmatch(r"\w+", written)
    parts = ", ".join(f"{f.alias}: {written if is_word and f.annotation is str else '…'}" for f in needed)
    hint = f"; write {{{parts}}}" if needed else ""
    return f"{hint} (allowed: {', '.join(_allowed_keys(details['loc']))})"


def _remove_union_members(location: Sequence[int | str]) -> tuple[int | str, ...]:
    return _resolve_path(location)[0]


def _format_key(location: Sequence[int | str], declared: Mapping[str, Any]) -> str:
    """Return the dotted path as in the YAML. A column is shown by its name, not by its number."""
    location = _remove_union_members(location)
    parts = [str(part) for part in location]
    for path in (("schema",), ("source", "schema")):
        columns, n = _find_value(declared, path), len(path)
        if location[:n] == path and isinstance(columns, Mapping) and location[n:] and isinstance(location[n], int):
            parts[n] = str(list(columns)[int(location[n])])
    return ".".join(part if part.isprintable() and part.strip() else repr(part) for part in parts)


def _find_closest_key(location: Sequence[int | str]) -> str | None:
    close = get_close_matches(str(location[-1]).replace("_", "-"), _allowed_keys(location[:-1]), n=1)
    return close[0] if close else None


def _allowed_keys(location: Sequence[int | str]) -> list[str]:
    model = _find_model(location)
    by_name = model is Column  # whose name is the mapping's key
    return [str(field.alias) for field in model.model_fields.values() if not (by_name and field.alias == "name")]


def _find_model(location: Sequence[int | str]) -> type[BaseModel]:
    (model,) = _union_members(_resolve_path(location)[1])
    return cast("type[BaseModel]", model)


def _find_union(location: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return the path of the first union in a location; empty if none, or if it is the format."""
    depth = next((n for n in range(len(location)) if len(_union_members(_resolve_path(location[:n])[1])) > 1), 0)
    return () if tuple(location[:depth]) == _FORMAT else tuple(location[:depth])


def _resolve_path(location: Sequence[int | str]) -> tuple[tuple[int | str, ...], Any]:
    """Return the path without union members, which pydantic adds, and the type that is expected there."""
    path: list[int | str] = []
    expected: Any = StreamSpec
    for part in location:
        members = _union_members(expected)
        if len(members) > 1:
            name = str(part).removesuffix("]").rpartition(" ")[2]  # of `Model` or `function-after[check(), Model]`
            expected = FORMATS.get(name) or next((m for m in members if getattr(m, "__name__", "") == name), None)
        else:
            path.append(part)
            expected = _find_inner_type(members[0], part)
    return tuple(path), expected


def _union_members(expected: Any) -> tuple[Any, ...]:
    if get_origin(expected) is Annotated:
        return _union_members(get_args(expected)[0])
    if get_origin(expected) not in {Union, UnionType}:
        return (expected,)
    return tuple(member for member in get_args(expected) if member is not NoneType)


def _find_inner_type(expected: Any, part: int | str) -> Any:
    if isinstance(expected, type) and issubclass(expected, BaseModel):
        return next((field.annotation for field in expected.model_fields.values() if field.alias == part), None)
    inner = get_args(expected)
    return (inner[0] if isinstance(part, int) else inner[-1]) if inner else None
