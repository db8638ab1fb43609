"""Proposes columns: their types, whether they are required, and which columns may be the event time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from statistics import median

from frazil.infer.sample import MAX_DISTINCT, MIN_VALUES_PER_MISFIT, UNITS, FieldStatistics
from frazil.spec.column import METADATA_COLUMN_PROBLEM, METADATA_COLUMNS, RESERVED_COLUMNS
from frazil.spec.types import SAME_NAMES, List, Map, Struct, Type, is_field_name, name_key, parse_type
from frazil.spec.units import format_count

MIN_RECORDS_FOR_REQUIRED = 100
"""A column is proposed as required only if at least this many records were sampled, and all have a value."""
MIN_MAP_FIELDS = 20
"""An object with at least this many distinct field names, but few in each record, is proposed as a map."""
MAX_ODD_CHARACTERS = 40
MAX_REMARKS = 3
TIME_TYPES = ("timestamp", "timestamptz")
_KIND_NOUNS = {"int": "integer", "text": "string", "non-finite": "non-finite number"}
MAX_KAFKA_TIME_DISTANCE_S = 400 * 86_400.0
"""Numbers within this distance (s) of Kafka's timestamps are times, whatever the field's name."""

_TIME_NAMES = re.compile(
    r"(^|[_-])(ts|at|time|timestamp|date|datetime|epoch|when|created|updated|occurred|departure|arrival)($|[_-]|(?=ms|us|ns))"
    r"|(Time|Timestamp|Date|At)$|timestamp$|_?(ms|us|ns)$"
)


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    """A proposed column. Its type is None if the field cannot be a column."""

    name: str
    type: str | None
    required: bool = False
    unit: str | None = None
    as_json: bool = False
    """Whether the column stores values of several types, as JSON text."""
    json_fields: tuple[str, ...] = ()
    """Strings within the column that store values of several types, as `as` writes them."""
    is_partial: bool = False
    """Whether the type does not contain all fields of the sampled objects."""
    is_cast: bool = False
    """Whether values in several forms need `cast: lenient`."""
    path: str | None = None
    """The field, as `from` writes it; None if it has the column's name."""
    is_rest: bool = False
    """Whether the column keeps the fields that no other column takes."""
    remark: str = ""
    distinct: int | None = None
    """Distinct values in the sample; None if they are too many, unknown or irrelevant."""
    distance_s: float = float("inf")
    """Seconds between the middle of the column's times and the median of Kafka's timestamps; infinite if unknown."""

    @property
    def is_time(self) -> bool:
        return self.type in TIME_TYPES


def propose_columns(
    statistics: FieldStatistics,
    *,
    timestamps_ms: Sequence[int],
    relaxed: FieldStatistics | None = None,
    allows_dots: bool = False,
    has_json: bool = True,
) -> tuple[ProposedColumn, ...]:
    """Propose a column for each field, in order of appearance. A field that cannot be a column has no type.

    `relaxed` has statistics of the same fields after `parse_text`; without it, no column is cast.
    With `allows_dots`, names may have dots: `rename_dotted` replaces them. Without `has_json`, values are texts: a
    field with several types becomes a column of texts.
    """
    sampled = statistics.kinds["object"]
    middle_s = median(timestamps_ms) / 1000 if timestamps_ms else None
    proposed: list[ProposedColumn] = []
    names: dict[str, str] = {}
    for name, observed in statistics.fields.items():
        if reason := find_column_problem(name, names, allows_dots=allows_dots):
            proposed.append(ProposedColumn(name, None, remark=reason))
        else:
            names[name_key(name)] = name
            text_statistics = FieldStatistics() if relaxed is None else relaxed.fields[name]
            proposed.append(_propose_column(name, observed, text_statistics, sampled, middle_s, has_json=has_json))
    return tuple(proposed)


def rename_dotted(columns: Sequence[ProposedColumn]) -> tuple[ProposedColumn, ...]:
    """Replace dots in columns' names, because column names cannot have them. `from` then names the field."""
    used = {name_key(column.name): column.name for column in columns}
    renamed = []
    for column in columns:
        if column.type is not None and "." in column.name:
            plain = re.sub(r"[.\[\]]", "_", column.name)
            names = chain([plain], (f"{plain}_{i}" for i in count(2)))
            name = next(n for n in names if not find_column_problem(n, used))
            used[name_key(name)] = name
            column = replace(column, name=name, path=re.sub(r"([.\[\]])", r"\\\1", column.name))  # noqa: PLW2901
        renamed.append(column)
    return tuple(renamed)


def rank_event_times(columns: Sequence[ProposedColumn]) -> list[ProposedColumn]:
    """Return the columns that may be the event time, most likely first."""
    times = [column for column in columns if column.is_time]
    return sorted(times, key=lambda c: (not _TIME_NAMES.search(c.name), not c.required, c.distance_s))


def find_column_problem(name: str, earlier: Mapping[str, str], *, allows_dots: bool = False) -> str:
    """Return why a field cannot be a column; empty if it can. `earlier` has the earlier columns by `name_key`."""
    if not name or set(name) & set('"\\' if allows_dots else '."\\') or name != name.strip() or not name.isprintable():
        return "a column cannot have this name"
    key = name_key(name)
    if key in RESERVED_COLUMNS:
        return "frazil adds a column with this name"
    if key in METADATA_COLUMNS:
        return METADATA_COLUMN_PROBLEM
    return f"has the same name as {same}, because {SAME_NAMES}" if (same := earlier.get(key)) else ""


def _propose_column(  # noqa: PLR0913 - the facts about a field
    name: str,
    observed: FieldStatistics,
    relaxed: FieldStatistics,
    sampled: int,
    middle_s: float | None,
    *,
    has_json: bool,
) -> ProposedColumn:
    cast = _guess_cast(name, observed, relaxed, middle_s)
    plain = _guess_type(observed)
    unit = _guess_unit(name, observed, middle_s) if plain and observed.kind == "int" else None
    of_one_type, unit = cast or ("timestamptz" if unit else plain, unit)
    kind = of_one_type or "string"
    is_time = kind in TIME_TYPES
    is_of_interest = 0 < len(observed.distinct) < MAX_DISTINCT and not is_time and not observed.others
    remarks = []
    absent = sampled - observed.present
    if observed.kind is None:
        remarks.append("only null was seen")
    elif absent:
        remarks.append(f"absent in {absent / sampled:.1%}")
    left_out = [*_find_left_out(observed, parse_type(kind), "")]
    if left_out:
        more = len(left_out) - MAX_REMARKS
        shown = [*map(json.dumps, left_out[:MAX_REMARKS]), *([f"{more:,} more"] if more > 0 else [])]
        remarks.append(f"leaves out {', '.join(shown)}")
    if unit is not None:
        remarks += _describe_other_times(relaxed if cast else observed, unit)
    as_json = of_one_type is None and has_json
    inside = [_describe_several_types(observed)] if as_json else list(_describe_guesses(observed, ""))
    remarks += inside[:MAX_REMARKS]
    if len(inside) > MAX_REMARKS:
        remarks.append("and more")
    return ProposedColumn(
        name,
        kind,
        required=not absent
        and (not observed.others or bool(cast) or of_one_type is None)
        and sampled >= MIN_RECORDS_FOR_REQUIRED,
        unit=unit,
        as_json=as_json,
        json_fields=tuple(dict.fromkeys(_find_json_fields(observed, parse_type(kind)))),
        is_partial=bool(left_out),
        is_cast=cast is not None,
        remark="; ".join(remarks),
        distinct=len(observed.distinct) if is_of_interest and of_one_type else None,
        distance_s=_distance_from_kafka_s(relaxed if cast else observed, unit, middle_s) if is_time else float("inf"),
    )


def _describe_other_times(observed: FieldStatistics, unit: str) -> Iterator[str]:
    if others := observed.count_other_times(unit):
        times, integers = observed.times[unit], observed.kinds["int"]
        example = observed.lowest if observed.lowest < times.lowest else observed.highest
        counted = f"{others:,} of {integers:,} integers"
        yield f"{counted} are not times of this century, such as {example}; a number column keeps them"


def _describe_several_types(observed: FieldStatistics) -> str:
    count_text = _count_kinds(observed.kinds)
    return f"values of several types{f' ({count_text})' if ',' in count_text else ''}, stored as JSON text"


def _count_kinds(kinds: Mapping[str, int]) -> str:
    by_count = sorted(((kind, count) for kind, count in kinds.items() if kind != "null"), key=lambda item: -item[1])
    return ", ".join(format_count(count, _KIND_NOUNS.get(kind, kind)) for kind, count in by_count)


def _describe_guesses(observed: FieldStatistics, path: str, lists: int | None = None) -> Iterator[str]:
    """Yield a remark for each guessed type that some values do not fit, or that no value confirms.

    `lists` is as in `_guess_type`.
    """
    where = f"{path}: " if path else ""
    if path and _guess_type(observed, lists) is None:
        yield f"{where}{_describe_several_types(observed)}"
        return
    yield from (f"{where}{remark}" for remark in _describe_misfits(observed))
    if observed.kind is None:
        if path:
            yield f"{where}only null was seen"
    elif observed.kind == "array" and observed.elements is not None:
        if observed.elements.kinds:
            arrays = observed.kinds["array"] if lists is None else min(lists, observed.kinds["array"])
            yield from _describe_guesses(observed.elements, f"{path}[]", arrays)
        else:
            yield f"{where}only empty lists were seen"
    elif observed.kind == "object":
        if not observed.fields:
            yield f"{where}only empty objects were seen"
        is_struct = (_guess_object_type(observed, lists) or "").startswith(
            "struct"
        )  # a map's keys are data, so their types are not listed
        for name, field in observed.fields.items() if is_struct else ():
            if not find_column_problem(name, {}):
                yield from _describe_guesses(field, f"{path}.{name}" if path else name, lists)


def _describe_misfits(observed: FieldStatistics) -> Iterator[str]:
    """Yield a remark for each minority of values that decided the type, or that does not fit it."""
    if observed.others:
        other_kinds = _count_kinds(observed.other_kinds)
        yield f"{observed.others:,} of {observed.present:,} values have a different type: {other_kinds}"
    if observed.fractions and observed.kinds["int"] >= MIN_VALUES_PER_MISFIT * observed.fractions:
        count = f"{observed.fractions:,} of {observed.present:,} values"
        yield f"{count} are not whole, such as {observed.misfits['int']}; long would reject them"
    if observed.kind == "text" and (shape := observed.main_shape) and (odd_texts := observed.count_odd_texts(shape)):
        misfit = json.dumps(observed.misfits[shape][:MAX_ODD_CHARACTERS])
        other_text = "string would accept all" if shape == observed.shape else f"{shape} would reject them"
        yield f"{odd_texts:,} of {observed.kinds['text']:,} texts do not fit, such as {misfit}; {other_text}"


def _find_left_out(observed: FieldStatistics, kind: Type, path: str) -> Iterator[str]:
    match kind:
        case List(element) if observed.elements is not None:
            yield from _find_left_out(observed.elements, element, f"{path}[]")
        case Struct(fields):
            types = {field.name: field.type for field in fields}
            for name, field in observed.fields.items():
                inner = f"{path}.{name}" if path else name
                if name in types:
                    yield from _find_left_out(field, types[name], inner)
                else:
                    yield inner


def _find_json_fields(observed: FieldStatistics, kind: Type, lists: int | None = None, path: str = "") -> Iterator[str]:
    """Yield the strings within the type that stand for values of several types. `lists` is as in `_guess_type`."""
    match kind:
        case List(element) if observed.elements is not None:
            arrays = observed.kinds["array"] if lists is None else min(lists, observed.kinds["array"])
            yield from _find_json_fields(observed.elements, element, arrays, f"{path}element.")
        case Map(_, value):
            for statistics in observed.fields.values():
                yield from _find_json_fields(statistics, value, lists, f"{path}value.")
        case Struct(fields):
            for field in fields:
                inner = observed.fields.get(field.name)
                if inner is not None and _guess_type(inner, lists) is None:
                    yield f"{path}{field.name}"
                elif inner is not None:
                    yield from _find_json_fields(inner, field.type, lists, f"{path}{field.name}.")


def _guess_unit(name: str, observed: FieldStatistics, middle_s: float | None) -> str | None:
    """Return the unit of a field whose integers are mostly times of this century, counted from 1970; None for other
    fields.

    The field's name must suggest a time, or the times must be close to Kafka's timestamps.
    """
    for unit in UNITS:
        if unit in observed.times and observed.count_other_times(unit) * MIN_VALUES_PER_MISFIT < observed.kinds["int"]:
            near = _distance_from_kafka_s(observed, unit, middle_s) <= MAX_KAFKA_TIME_DISTANCE_S and unit != "s"
            return unit if near or _TIME_NAMES.search(name) else None
    return None


def _guess_cast(
    name: str, observed: FieldStatistics, relaxed: FieldStatistics, middle_s: float | None
) -> tuple[str, str | None] | None:
    """Return a type, and the unit of times, for values of several forms; None without a cast."""
    kinds = {kind for kind in relaxed.kinds if kind != "null"}
    if not kinds or (not observed.others and relaxed.kinds == observed.kinds):
        return None
    if (_guess_type(observed) or "").startswith("decimal"):
        return None  # a decimal reads texts and numbers, and keeps all digits
    unit = _guess_unit(name, relaxed, middle_s) if "int" in kinds and "float" not in kinds else None
    if unit and (kinds == {"int"} or (kinds == {"int", "text"} and relaxed.moments and not relaxed.odd_texts)):
        return "timestamptz", unit
    if not observed.others:
        return None  # texts of digits may be names, whose zeros count
    if kinds <= {"boolean", "int"} and "boolean" in kinds:
        return ("boolean", None) if relaxed.lowest >= 0 and relaxed.highest <= 1 else None
    return (_guess_type(relaxed) or "string", None) if kinds <= {"int", "float"} else None


def _distance_from_kafka_s(observed: FieldStatistics, unit: str | None, middle_s: float | None) -> float:
    """Return the seconds between the middle of a field's times and Kafka's median timestamp; infinity if unknown."""
    if middle_s is None:
        return float("inf")
    if unit is not None:
        times = observed.times[unit]
        return abs((times.lowest + times.highest) / 2 / UNITS[unit] - middle_s)
    return abs(sum(m.timestamp() for m in observed.moments) / 2 - middle_s) if observed.moments else float("inf")


def _guess_type(observed: FieldStatistics, lists: int | None = None) -> str | None:
    """Return the type of most values; None if too many values have another type.

    `lists` is the number of lists that contain the values.
    """
    values = observed.present if lists is None else min(lists, observed.present)
    if observed.others and observed.others * MIN_VALUES_PER_MISFIT >= values:
        return None
    simple = {"boolean": "boolean", "float": "double", "non-finite": "double"}
    match observed.kind:
        case "int":
            # `int` might be too small: small integers in a sample do not prove that later ones, such as ids, are small.
            return "long" if observed.lowest >= -(2**63) and observed.highest < 2**63 else "decimal(38, 0)"
        case "object":
            return _guess_object_type(observed, lists)
        case "array":
            arrays = observed.kinds["array"] if lists is None else min(lists, observed.kinds["array"])
            element = _guess_type(observed.elements or FieldStatistics(), arrays)
            return None if element is None else f"list<{element}>"
        case "text":
            return _guess_text_type(observed)
        case kind:
            return simple.get(kind or "", "string")


def _guess_text_type(observed: FieldStatistics) -> str:
    if observed.shape == "decimal":
        integer, fraction = observed.digits
        return f"decimal({min(38, integer + fraction + 6)}, {fraction})"
    return observed.shape or "string"


def _guess_object_type(observed: FieldStatistics, lists: int | None = None) -> str | None:
    # Computed once: nesting can be deep.
    types = {name: _guess_type(field, lists) for name, field in observed.fields.items()}
    inner = [name for name in types if not find_column_problem(name, {})]
    kinds = {types[name] for name, field in observed.fields.items() if field.kind is not None}
    a_record = sum(field.kinds.total() for field in observed.fields.values()) / max(1, observed.kinds["object"])
    many = len(observed.fields) >= MIN_MAP_FIELDS and a_record <= len(observed.fields) / 4
    if many and None in kinds:
        return None
    if len(kinds) == 1 and (many or not inner):
        fails = any(field.others or field.odd_texts for field in observed.fields.values())
        return None if fails or (kind := kinds.pop()) is None else f"map<string, {kind}>"
    distinct = set({name_key(name): name for name in reversed(inner)}.values())
    names = [name for name in inner if name in distinct and is_field_name(name)]
    if not any(types[name] for name in names):
        return "map<string, string>" if not observed.fields else None
    described = (f"{name}: {types[name] or 'string'}" for name in names)
    return f"struct<{', '.join(described)}>"
