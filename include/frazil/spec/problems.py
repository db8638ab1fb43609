"""Turns pydantic's errors into sentences for the author of the YAML: key, value, what is allowed, a suggestion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from frazil.spec.column import Column, column_of
from frazil.spec.formats import FORMATS
from frazil.spec.inconsistent import InconsistentError, Problem
from frazil.spec.model import STREAM_NAME, StreamSpec
from frazil.spec.property_rules import is_secret

MOST = 50
"""Problems reported for one file."""

_STAND_INS: Mapping[str, Any] = {
    "name": "stand-in",
    "source": {"bootstrap-servers": "stand-in:9092", "topics": "stand-in"},
    "table": {"identifier": "stand.in"},
    "event-time": {"column": "stand-in"},
}
"""A stream's required parts besides its columns."""

_FORMAT = ("source", "format")

_MEANINGS = {
    "union_tag_not_found": "has no type",
    "missing": "is missing",
    "string_type": "is not text",
    "int_type": "is not a whole number",
    "int_parsing": "is not a whole number",
    "bool_type": "is not true or false",
    "bool_parsing": "is not true or false",
    "tuple_type": "is not a list",
    "dict_type": "is not a mapping",
    "model_type": "is not a mapping",
    "string_too_short": "is empty",
    "too_short": "is empty; at least one is needed",
}


def describe(error: ValidationError, declared: Mapping[str, Any], path: Path) -> str:
    """One line for each problem, `file: key: value message`, up to `MOST`; a secret's value is not shown."""
    found = _problems(error, declared)
    known = {problem.key for problem in found}
    found += [problem for problem in _between(error, declared) if problem.key not in known]
    lines = [f"{path}: {_line(problem)}" for problem in found[:MOST]]
    if len(found) > MOST:
        lines.append(f"{path}: and {len(found) - MOST:,} more; fix these first")
    return "\n".join(lines)


def _line(problem: Problem) -> str:
    shown = "" if problem.value is None else f"{_short(problem.value)} "
    return f"{problem.key}: {shown}{problem.message}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _problems(error: ValidationError, declared: Mapping[str, Any]) -> list[Problem]:
    found = [details for details in error.errors() if details["type"] != "too_short" or not details["input"]]
    meant = {
        (*details["loc"][:-1], _meant(details["loc"])) for details in found if details["type"] == "extra_forbidden"
    }
    misspelt = [details for details in found if details["type"] == "missing" and details["loc"] in meant]
    return [problem for details in found if details not in misspelt for problem in _translate(details, declared)]


def _between(error: ValidationError, declared: Mapping[str, Any]) -> list[Problem]:
    """Problems between parts. Pydantic does not check these while a part is wrong, so stand-ins replace wrong parts."""
    locations = [_untagged(details["loc"]) for details in error.errors() if details["loc"]]
    if not locations:
        return []
    sound = _with_stand_ins(declared, locations)
    wrong = frozenset(_key(location, declared) for location in locations)
    try:
        StreamSpec.model_validate(sound, by_alias=True, by_name=False, context={"wrong": wrong})
    except ValidationError as again:
        between = (details for details in again.errors() if not details["loc"])
        return [problem for details in between for problem in _translate(details, declared)]
    return []


def _with_stand_ins(declared: Mapping[str, Any], locations: Iterable[Sequence[int | str]]) -> dict[str, Any]:
    """The declaration without its wrong parts, with harmless stand-ins for required ones."""
    sound: dict[str, Any] = {key: _copied(value) for key, value in declared.items() if isinstance(key, str)}
    columns = sound.get("schema")
    kept = dict(columns) if isinstance(columns, dict) else {}
    names = list(kept)
    for location in locations:
        first, *rest = location
        if first == "schema" and rest and isinstance(rest[0], int) and rest[0] < len(names):
            kept[names[rest[0]]] = Column.model_construct(name=str(names[rest[0]]), type="", required=False, doc=None)
        elif first != "schema":
            _remove(sound, location)
        elif not rest:
            kept = {}
    named = [c if isinstance(c, Column) else column_of(str(name), c) for name, c in kept.items()]
    sound["schema"] = tuple(named) or (Column(name="stand-in", type="timestamptz"),)
    return _filled(sound, _STAND_INS)


def _remove(sound: dict[str, Any], location: Sequence[int | str]) -> None:
    """Remove the part at a path, or its nearest ancestor that is the value of a mapping."""
    inner: Any = sound
    for part, below in zip(location, [*location[1:], None], strict=True):
        if not isinstance(inner, dict) or part not in inner:
            return
        if below is None or not isinstance(inner[part], dict):
            del inner[part]
            return
        inner = inner[part]


def _filled(sound: dict[str, Any], stand_ins: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in stand_ins.items():
        if isinstance(value, Mapping) and isinstance(sound.get(key, {}), dict):
            sound[key] = _filled(sound.get(key, {}), value)
        else:
            sound.setdefault(key, value)
    return sound


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _translate(details: ErrorDetails, declared: Mapping[str, Any]) -> Iterator[Problem]:
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InconsistentError):
        yield from cause.problems
        return
    key = _key(details["loc"], declared)
    value = details["input"]
    if details["type"] == "union_tag_invalid":
        key, value = f"{key}.type" if isinstance(_at(declared, _FORMAT), Mapping) else key, details["ctx"]["tag"]
    if is_secret(key) or details["type"] == "missing" or not isinstance(value, str | int | float):
        value = None  # nested values may hold a secret
    if details["type"] == "extra_forbidden":
        yield Problem(key, None, _unknown_key(details["loc"]))
    else:
        message = _meaning(details) if cause is None else str(cause)
        yield Problem(key, None if isinstance(value, str) and repr(value) in message else value, message)


def _at(declared: Mapping[str, Any], path: Iterable[str]) -> object:
    """What was written at a path; None if there is nothing."""
    inner: object = declared
    for part in path:
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner


def _meaning(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "literal_error":
        return f"is not allowed; write {context['expected'].replace(chr(39), '')}"
    if kind == "union_tag_invalid":
        return f"is not allowed; write {context['expected_tags'].replace(chr(39), '')}"
    if kind == "string_pattern_mismatch" and context["pattern"] == STREAM_NAME:
        return "is no stream name; write lower case letters, digits, '-' and '_', a letter first, at most 63"
    if kind == "greater_than":
        return f"is not above {context['gt']}"
    meaning = _MEANINGS.get(kind, f"cannot be used: {details['msg']}")
    return f"{meaning}{_mapping_to_write(details)}" if kind == "model_type" else meaning


def _mapping_to_write(details: ErrorDetails) -> str:
    """What belongs where a mapping with known keys is missing: those that it needs, with what was written for it."""
    model = _model_at(details["loc"])
    needed = [field for field in model.model_fields.values() if field.is_required()]
    written = details["input"]
    is_word = len(needed) == 1 and isinstance(written, str) and re.fullmatch(r"\w+", written)
    parts = ", ".join(f"{f.alias}: {written if is_word and f.annotation is str else '…'}" for f in needed)
    write = f"; write {{{parts}}}" if needed else ""
    return f"{write} (allowed: {', '.join(_allowed_keys(details['loc']))})"


def _untagged(location: Sequence[int | str]) -> tuple[int | str, ...]:
    """The path without the type that pydantic puts after a format."""
    tagged = tuple(location[:2]) == _FORMAT and len(location) > 2
    return (*_FORMAT, *location[3:]) if tagged else tuple(location)


def _key(location: Sequence[int | str], declared: Mapping[str, Any]) -> str:
    """The dotted path as in the YAML, with columns by name instead of index."""
    location = _untagged(location)
    parts = [str(part) for part in location]
    columns = declared.get("schema")
    if len(location) > 1 and location[0] == "schema" and isinstance(columns, Mapping) and isinstance(location[1], int):
        parts[1] = str(list(columns)[location[1]])
    return ".".join(parts)


def _unknown_key(location: Sequence[int | str]) -> str:
    allowed = _allowed_keys(location[:-1])
    meant = _meant(location)
    hint = f"; did you mean {meant}?" if meant else ""
    return f"is an unknown key{hint} (allowed: {', '.join(allowed)})"


def _meant(location: Sequence[int | str]) -> str | None:
    """The allowed key that an unknown one is close to, if there is one."""
    close = get_close_matches(str(location[-1]).replace("_", "-"), _allowed_keys(location[:-1]), n=1)
    return close[0] if close else None


def _allowed_keys(location: Sequence[int | str]) -> list[str]:
    """The YAML keys of the model at a path."""
    model = _model_at(location)
    by_name = model is Column  # whose name is the mapping's key
    return [str(field.alias) for field in model.model_fields.values() if not (by_name and field.alias == "name")]


def _model_at(location: Sequence[int | str]) -> type[BaseModel]:
    model: type[BaseModel] = StreamSpec
    if tuple(location[:2]) == _FORMAT:
        model, location = FORMATS[str(location[2])], location[3:]
    for part in location:
        field = next((f for f in model.model_fields.values() if f.alias == part), None)
        if field is not None:
            model = _model_of(field.annotation)
    return model


def _model_of(annotation: Any) -> type[BaseModel]:
    """The model that a field holds, directly, in a tuple, or beside None."""
    inner = getattr(annotation, "__args__", (annotation,))[0]
    model: type[BaseModel] = inner
    return model
