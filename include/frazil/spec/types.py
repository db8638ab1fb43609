"""Parses Iceberg types from text without PyIceberg, because Airflow parses DAG files often."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar

_NUMBERS, _TIMES = ("int", "long", "float", "double"), ("date", "time", "timestamp", "timestamptz")
PRIMITIVE_NAMES = ("boolean", *_NUMBERS, *_TIMES, "string", "uuid", "binary")
VARIANT = "variant"
"""A primitive type that only a whole column can have."""
ALLOWED_TYPES = ", ".join(
    (*PRIMITIVE_NAMES, VARIANT, "decimal(p,s)", "fixed[n]", "struct<name: type>", "list<type>", "map<key, value>")
)

MAX_DECIMAL_PRECISION = 38
UNREADABLE_TYPES = {
    "time": "Spark cannot read a table with a time column, not even its other columns, and compaction fails on it; "
    "write string ('10:11:12'), or long if records hold a number"
}
"""Types that some engine cannot read, with the reason. frazil creates no table with them."""

_FORMAT_3_TYPES = {
    **dict.fromkeys(("timestamp_ns", "timestamptz_ns"), "Spark 4.1 could not read any column of the table"),
    **dict.fromkeys(("geometry", "geography", "unknown"), "frazil cannot write it"),
}
_JSON_NAMES = frozenset({"json", "jsonb", "object", "any", "dict"})
"""Types of other systems whose values are JSON."""
_ICEBERG_NAMES = {
    **dict.fromkeys(("bigint", "int64"), "long"),
    **dict.fromkeys(("integer", "int32", "smallint", "tinyint", "short", "byte"), "int"),
    **dict.fromkeys(("number", "numeric", "decimal"), "decimal(p,s)"),
    **dict.fromkeys(("real", "float32"), "float"),
    "float64": "double",
    "bool": "boolean",
    **dict.fromkeys(("varchar", "text", "str"), "string"),
    **dict.fromkeys(("datetime", "timestamp_ltz"), "timestamptz"),
    "timestamp_ntz": "timestamp",
    **dict.fromkeys(("bytes", "varbinary", "blob"), "binary"),
    "fixed": "fixed[n]",
    **dict.fromkeys(("array", "list"), "list<type>"),
    "map": "map<key, value>",
    **dict.fromkeys(("row", "struct"), "struct<name: type>"),
}
"""Iceberg's names for the types of other systems, and for types whose arguments are missing."""

_SQL_NAMES = {
    re.compile(rf"(?:{words})\b", re.IGNORECASE): name
    for words, name in (
        (r"timestamp (?:\( \d+ \) )?with time zone", "timestamptz"),
        (r"timestamp (?:\( \d+ \) )?without time zone", "timestamp"),
        ("double precision", "double"),
        ("(?:national )?char(?:acter)?(?: varying| large object)?", "string"),
        ("binary (?:varying|large object)", "binary"),
    )
}
"""Iceberg's names of SQL types with several words. The patterns match tokens separated by one space."""
MAX_SQL_TOKENS = 8
"""Maximum number of tokens of a SQL type that are matched: one more than in `timestamp ( 6 ) without time zone`."""
MAX_NESTING = 50


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive type. `arguments` are a `decimal`'s precision and scale, or the length of a `fixed`."""

    name: str
    arguments: tuple[int, ...] = ()
    fields: ClassVar[tuple[Field, ...]] = ()

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"decimal({self.arguments[0]}, {self.arguments[1]})"
        return f"fixed[{self.arguments[0]}]" if self.name == "fixed" else self.name


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: Type
    required: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{' not null' if self.required else ''}"


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(map(str, self.fields))}>"


@dataclass(frozen=True, slots=True)
class List:
    """A list type. Elements may be null, as in Iceberg by default."""

    element: Type

    @property
    def fields(self) -> tuple[Field, ...]:
        return (Field("element", self.element),)

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class Map:
    """A map type. Keys are never null; values may be null."""

    key: Type
    value: Type

    @property
    def fields(self) -> tuple[Field, ...]:
        return Field("key", self.key, required=True), Field("value", self.value)

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


Type = Primitive | Struct | List | Map


def find_type_paths(name: str, kind: Type, where: str) -> Iterator[str]:
    """Yield the dotted paths at which `kind` contains the primitive type `name`. `where` is the path of `kind`."""
    if isinstance(kind, Primitive) and kind.name == name:
        yield where
    for field in kind.fields:
        yield from find_type_paths(name, field.type, f"{where}.{field.name}")


def find_type(columns: Mapping[str, Type], path: Sequence[str], *, ignore_case: bool = False) -> Type | None:
    """Return the type of a field. `path` is its full name in Iceberg, split at dots."""
    fold = str.lower if ignore_case else str
    nested_type: Type | None = Struct(tuple(Field(name, kind) for name, kind in columns.items()))
    for part in path:
        fields = nested_type.fields if nested_type else ()
        nested_type = next((field.type for field in fields if fold(field.name) == fold(part)), None)
    return nested_type


_TOKEN = re.compile(
    r"(?<=[<,])\s*+(?P<name>[^\s<>(),:\[\]\"\\.][^<>(),:\[\]\"\\.\0-\x1f]*+)(?=:)"
    r"|\s*(?:(?P<word>[A-Za-z_][\w-]*)|(?P<number>\d+)|(?P<mark>[<>(),:\[\]]))"
)
"""A token of a type. The name of a struct's field may contain spaces and any letters."""


def parse_type(text: str) -> Type:
    """Parse one Iceberg type. The ValueError for another system's type, such as `bigint`, names Iceberg's type."""
    tokens, position = [], 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise ValueError(
                f"has {stripped[position:].strip()[0]!r}, which no Iceberg type contains; allowed: {ALLOWED_TYPES}"
            )
        tokens.append(match[0].strip())
        position = match.end()
    parser = _Parser(tokens)
    parsed = parser.parse_type()
    if remaining := parser._tokens[parser._position :]:
        raise ValueError(f"has {' '.join(remaining)!r} after the type's end; a required column ends with 'not null'")
    return parsed


def is_field_name(name: str) -> bool:
    try:
        return str(parse_type(f"struct<{name}: int>")) == f"struct<{name}: int>"
    except ValueError:
        return False


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0
        self._nesting = 0

    def parse_type(self) -> Type:
        self._check_not_sql()
        name = self._take_name("a type")
        if self._peek() == "<":
            parts = {"struct": self._parse_struct, "list": self._parse_list, "map": self._parse_map}
            if (parse := parts.get(name)) is None:
                raise _unknown_type_error(name)
            self._nesting += 1
            if self._nesting > MAX_NESTING:
                raise ValueError(f"is nested more than {MAX_NESTING} levels deep")
            self._take_mark("<")
            parsed = parse()
            self._take_mark(">")
            self._nesting -= 1
            return parsed
        if name == "decimal" and self._peek() == "(":
            return self._parse_decimal()
        if name == "fixed" and self._peek() == "[":
            self._take_mark("[")
            length = self._parse_number()
            self._take_mark("]")
            if length == 0:
                raise ValueError("has fixed[0]; the length must be 1 or more")
            return Primitive("fixed", (length,))
        if name == VARIANT and self._nesting:
            raise ValueError("has a variant inside another type; make the whole column a variant")
        if name in PRIMITIVE_NAMES or name == VARIANT:
            return Primitive(name)
        raise _unknown_type_error(name)

    def _check_not_sql(self) -> None:
        """Raise ValueError for an SQL type of several words: a later error would mention only the second word."""
        following = " ".join(self._tokens[self._position : self._position + MAX_SQL_TOKENS])
        for pattern, name in _SQL_NAMES.items():
            if match := pattern.match(following):
                written = re.sub(r" \( \d+ \)", "", match[0])
                raise ValueError(f"has SQL's {written!r}, which Iceberg writes as {name!r}")

    def _parse_struct(self) -> Type:
        fields = [self._parse_field()]
        while self._peek() == ",":
            self._take_mark(",")
            fields.append(self._parse_field())
        names = [name_key(field.name) for field in fields]
        if doubled := sorted(field.name for n, field in enumerate(fields) if names[n] in names[:n]):
            raise ValueError(f"names the struct's field {doubled[0]!r} twice ({SAME_NAMES})")
        return Struct(tuple(fields))

    def _parse_field(self) -> Field:
        name = self._take_name("a field's name", any_name=True)
        self._take_mark(":")
        field_type = self.parse_type()
        required = [token.lower() for token in self._tokens[self._position : self._position + 2]] == ["not", "null"]
        self._position += 2 * required
        return Field(name, field_type, required)

    def _parse_list(self) -> Type:
        element = self.parse_type()
        self._refuse_not_null("an element of a list", f"list<{element}>")
        return List(element)

    def _parse_map(self) -> Type:
        key = self.parse_type()
        self._take_mark(",")
        value = self.parse_type()
        self._refuse_not_null("a map's value", f"map<{key}, {value}>")
        return Map(key, value)

    def _refuse_not_null(self, expression: str, instead: str) -> None:
        if [token.lower() for token in self._tokens[self._position : self._position + 2]] == ["not", "null"]:
            raise ValueError(f"has 'not null', but {expression} may always be null; write {instead}")

    def _parse_decimal(self) -> Primitive:
        self._take_mark("(")
        precision = self._parse_number()
        self._take_mark(",")
        scale = self._parse_number()
        self._take_mark(")")
        if not (1 <= precision <= MAX_DECIMAL_PRECISION and scale <= precision):
            raise ValueError(
                f"has decimal({precision},{scale}); the precision must be 1 to {MAX_DECIMAL_PRECISION}, "
                "and the scale 0 to the precision"
            )
        return Primitive("decimal", (precision, scale))

    def _peek(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _take_name(self, expected: str, *, any_name: bool = False) -> str:
        """Take the next token, a name. `any_name` allows more characters before a colon."""
        token = self._peek()
        is_name = token is not None and token not in set("<>(),:[]") and self._tokens[self._position + 1 :][:1] == [":"]
        if token is None or not (token[0].isalpha() or token[0] == "_" or (any_name and is_name)):
            raise ValueError(
                f"has {token!r} where {expected} should be; allowed: {ALLOWED_TYPES}" if token else self._end_message()
            )
        self._position += 1
        return token

    def _take_mark(self, mark: str) -> None:
        if self._peek() != mark:
            raise ValueError(f"has {self._peek()!r} where {mark!r} should be" if self._peek() else self._end_message())
        self._position += 1

    def _parse_number(self) -> int:
        token = self._peek()
        if token is None or not token.isdecimal():
            raise ValueError(f"has {token!r} where an integer should be" if token else self._end_message())
        self._position += 1
        return int(token)

    @staticmethod
    def _end_message() -> str:
        return f"ends too early; in a YAML {{…}} or […], quote a type that contains a comma (allowed: {ALLOWED_TYPES})"


SAME_NAMES = "engines ignore case and replace special characters"


def name_key(name: str) -> str:
    """Return a key that is equal for names that engines mistake for each other.

    Spark compares names character by character, in upper and lower case. In Parquet files, Iceberg replaces all
    characters but letters, digits and `_` by their UTF-16 code, and adds `_` before a leading digit.
    """
    folded = "".join(char.upper() if len(char.upper()) == 1 else char for char in name).lower()
    written = ""
    for char in folded.replace("i\u0307", "i"):  # the lower case of \u0130
        if char == "_" or (char <= "\uffff" and (char.isalpha() or (char.isdecimal() and written))):
            written += char
        elif char <= "\uffff" and char.isdecimal():
            written += f"_{char}"
        else:
            units = re.findall("....", char.encode("utf-16-be", "surrogatepass").hex())
            written += "".join(f"_x{int(unit, 16):x}" for unit in units)
    return written


def _unknown_type_error(name: str) -> ValueError:
    lower = name.lower()
    if lower in PRIMITIVE_NAMES or lower == VARIANT:
        return ValueError(f"is written {name!r}; Iceberg's name is {lower!r}")
    if lower in _ICEBERG_NAMES:
        return ValueError(f"has {name!r}, which Iceberg writes as {_ICEBERG_NAMES[lower]!r}")
    if lower in _JSON_NAMES:
        return ValueError(
            f"has {name!r}, which is not an Iceberg type. Write {{type: string, as: json}} for any value, or a type "
            "for known fields: struct<name: type>, list<type> or map<string, type>"
        )
    if lower in _FORMAT_3_TYPES:
        return ValueError(f"has {name!r}, a type of Iceberg's format version 3: {_FORMAT_3_TYPES[lower]}")
    close = get_close_matches(lower, [*PRIMITIVE_NAMES, "decimal", "fixed", "struct", "list", "map"], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return ValueError(f"has {name!r}, which is not an Iceberg type{hint} (allowed: {ALLOWED_TYPES})")
