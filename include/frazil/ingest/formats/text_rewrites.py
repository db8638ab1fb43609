"""Rewrites JSON values before strict decoding: for lenient casts, rounding, and values that become null."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg

ROUNDINGS: Mapping[str, str] = {"half-even": ROUND_HALF_EVEN, "half-up": ROUND_HALF_UP, "down": ROUND_DOWN}

RewriteRule = tuple[str, str]
"""An RE2 pattern for a whole JSON text, and its replacement."""

_INTEGER_RULES: tuple[RewriteRule, ...] = (
    (r'^"\s*(?:\+|(-?))0*([0-9]+)(?:\.0*)?\s*"$', r"\1\2"),
    (r"^(-?[0-9]+)\.0+$", r"\1"),
)
_NUMBER_RULES: tuple[RewriteRule, ...] = (
    (r'^"\s*(?:\+|(-?))0*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*"$', r"\1\2"),
    (r'^"(-?(?:NaN|Infinity))"$', r"\1"),
)
_TRIM_RULES: tuple[RewriteRule, ...] = ((r'^"\s+(\S*)\s*"$', r'"\1"'), (r'^"(\S+)\s+"$', r'"\1"'))
_SECONDS_RULES: tuple[RewriteRule, ...] = ((r'^"\s*(?:\+|(-?))0*([0-9]+(?:\.[0-9]+)?)\s*"$', r'"\1\2"'),)
"""Rules for times in seconds, which may be numbers or strings even without a lenient cast."""
_INT64 = range(-(2**63), 2**63)
_PER_SECOND: Mapping[str, int] = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_RULES: Mapping[type[iceberg.IcebergType], tuple[RewriteRule, ...]] = {
    iceberg.IntegerType: _INTEGER_RULES,
    iceberg.LongType: _INTEGER_RULES,
    iceberg.FloatType: _NUMBER_RULES,
    iceberg.DoubleType: _NUMBER_RULES,
    iceberg.DecimalType: _TRIM_RULES,
    iceberg.BooleanType: ((r'^"\s*(?i:true)\s*"$|^"?1"?$', "true"), (r'^"\s*(?i:false)\s*"$|^"?0"?$', "false")),
    iceberg.StringType: ((r"^(-?[0-9][0-9.eE+-]*|true|false)$", r'"\1"'),),
    iceberg.DateType: _TRIM_RULES,
}


def rules_of(kind: iceberg.IcebergType, unit: str | None) -> tuple[RewriteRule, ...]:
    if unit is not None and isinstance(kind, iceberg.TimestampType | iceberg.TimestamptzType):
        return _SECONDS_RULES if unit == "s" else _INTEGER_RULES
    return _RULES.get(type(kind), ())


def rewrite(texts: pa.Array, rules: Iterable[RewriteRule]) -> pa.Array:
    for pattern, replacement in rules:
        texts = pc.replace_substring_regex(texts, pattern=pattern, replacement=replacement)
    return texts


def convert_iso_times(texts: pa.Array, unit: str) -> pa.Array:
    """Replace ISO 8601 times in JSON texts by numbers of the unit. Keeps times with more digits than the unit."""
    from frazil.ingest.formats.json.scalars import parse_timestamp  # the compiler, only where records are read

    def number(text: str) -> str:
        octets = f'"{text[1:-1].strip()}"'.encode()
        end, micros = parse_timestamp(np.frombuffer(octets, np.uint8), 1)
        if end != len(octets) - 1:
            return text
        if unit == "s":
            return f'"{Decimal(micros).scaleb(-6):f}"'
        quotient = Fraction(micros * _PER_SECOND[unit], 10**6)
        return str(quotient) if quotient.denominator == 1 and int(quotient) in _INT64 else text

    return _change_distinct(texts, pc.match_substring_regex(texts, r'^"\s*[0-9]{4}-[0-9]{2}-[^"\\]*"$'), number)


def convert_debezium_times(texts: pa.Array, kind: iceberg.IcebergType) -> pa.Array:
    """Replace Debezium's numbers for dates and times in JSON texts by ISO 8601 strings."""

    def day(text: str) -> str:
        try:
            return f'"{date(1970, 1, 1) + timedelta(int(text))}"'
        except OverflowError:
            return f'"{text} days since 1970"'

    def time(text: str) -> str:
        number = int(text)
        if not 0 <= number < 24 * 3600 * 10**6:
            return f'"{text} microseconds"'
        return f'"{(datetime(1, 1, 1, tzinfo=UTC) + timedelta(microseconds=number)).time()}"'

    makers: Mapping[type[iceberg.IcebergType], Callable[[str], str]] = {iceberg.DateType: day, iceberg.TimeType: time}
    if (make := makers.get(type(kind))) is None:
        return texts
    return _change_distinct(texts, pc.match_substring_regex(texts, r"^-?[0-9]{1,19}$"), make)


def round_numbers(texts: pa.Array, scale: int, rounding: str) -> pa.Array:
    def round_text(text: str) -> str:
        number = Decimal(text.strip('"'))
        if number.adjusted() > 60:
            return text
        rounded = number.quantize(Decimal(1).scaleb(-scale), ROUNDINGS[rounding], Context(prec=200))
        return text if rounded == number else f'"{rounded:f}"'

    with_exponent = r"[0-9]{1,60}(?:\.[0-9]{1,60})?[eE][+-]?[0-9]{1,3}"
    pattern = rf'^"?-?(?:[0-9]{{1,60}}\.[0-9]{{{scale + 1},60}}|{with_exponent})"?$'
    return _change_distinct(texts, pc.match_substring_regex(texts, pattern), round_text)


def replace_with_null(
    texts: pa.Array, nulls: Iterable[str | int | float | bool], *, numbers_in_strings: bool = False
) -> pa.Array:
    """Replace these values in JSON texts by null. Recognises every notation of a number or string."""
    plain = {value for value in nulls if isinstance(value, str)}
    numbers = {Decimal(str(value)) for value in nulls if not isinstance(value, str | bool)}
    exact = [json.dumps(value, ensure_ascii=False) for value in nulls]
    is_null_text = pc.is_in(texts, pa.array(exact, texts.type))
    if numbers:
        number = r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?"
        pattern = rf'^(?:{number}|" *{number} *")$' if numbers_in_strings else f"^{number}$"
        matching = pc.filter(texts, pc.match_substring_regex(texts, pattern))
        same = [text for text in pc.unique(matching).to_pylist() if Decimal(text.strip('" ')) in numbers]
        is_null_text = pc.or_(is_null_text, pc.is_in(texts, pa.array(same, texts.type)))
    if plain:
        matching = pc.filter(texts, pc.and_(pc.starts_with(texts, '"'), pc.match_substring(texts, "\\")))
        same = [text for text in pc.unique(matching).to_pylist() if _string_content(text) in plain]
        is_null_text = pc.or_(is_null_text, pc.is_in(texts, pa.array(same, texts.type)))
    return pc.if_else(pc.fill_null(is_null_text, False), pa.scalar(None, texts.type), texts)


def _string_content(text: str) -> str | None:
    try:
        content = json.loads(text, strict=False)
    except ValueError:
        return None
    return content if isinstance(content, str) else None


def _change_distinct(texts: pa.Array, mask: pa.Array, change: Callable[[str], str]) -> pa.Array:
    """Apply `change` once to each distinct value that the mask selects."""
    mask = pc.fill_null(mask, False)
    if not pc.any(mask).as_py():
        return texts
    chosen = pc.filter(texts, mask).dictionary_encode()
    changed = pa.array(map(change, chosen.dictionary.to_pylist()), texts.type).take(chosen.indices)
    return pc.replace_with_mask(texts, mask, changed)
