"""Checks the expressions of a `transform`.

Every part of the syntax tree must be a known pure function of one record. A record must not be able to make the result
arbitrarily long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import Any

from frazil.errors import SpecError
from frazil.ingest.transform_sql import UNNESTED, open_connection

Node = dict[str, Any]
_ALLOWED_CLASSES = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA"}
    | {"OPERATOR", "TYPE"}
)
_REJECTED_CLASSES = {
    "WINDOW": "a window function",
    "SUBQUERY": "a subquery",
    "STAR": "`*` or COLUMNS inside an expression",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a reference by position",
    "DEFAULT": "DEFAULT",
}
_UNSTABLE_FUNCTIONS = frozenset(
    {"age", "array_grade_up", "current_localtime", "current_localtimestamp", "grade_up", "hash", "list_grade_up"}
    | {"version"}
)
"""Functions that DuckDB declares stable, although they depend on clock, zone, version or other records."""
_AGGREGATES_BY_NAME = frozenset({"aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"})
"""Functions whose second argument names an aggregate function for a list's elements."""
_LENGTH_ARGUMENTS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("array_resize", "bitstring", "list_resize", "lpad", "repeat", "rpad"), (1, 2)),
    **dict.fromkeys(("generate_series", "range"), (0, 3)),
    "bar": (1, 4),
}
"""Range of arguments (first index, end) that set a result's length. DuckDB's memory limit ignores this length."""
MAX_RESULT_LENGTH = 100_000
_COMPARISONS = ("damerau_levenshtein", "editdist3", "jaro_similarity", "jaro_winkler_similarity", "levenshtein")
_REPLACEMENTS = ("regexp_replace", "replace")
MAX_COMPARED_LENGTH = 1000
MAX_INSERTED_LENGTH = 100
_SHORT_ARGUMENTS: dict[str, tuple[int, int | None, int]] = {
    **dict.fromkeys(_COMPARISONS, (0, None, MAX_COMPARED_LENGTH)),
    **dict.fromkeys(_REPLACEMENTS, (2, 3, MAX_INSERTED_LENGTH)),
}
"""Range of arguments whose length multiplies time or memory: first index, end, and the arguments' maximum length."""


def find_nodes(part: Any) -> Iterator[Node]:
    if isinstance(part, list):
        for inner in part:
            yield from find_nodes(inner)
    elif isinstance(part, dict):
        if "class" in part:
            yield part
        for value in part.values():
            yield from find_nodes(value)


class SqlTree:
    """Converts SQL to DuckDB's syntax tree, and expressions back to SQL."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._template = self.parse("SELECT 1")
        self._constants: dict[str, object] = {}

    def parse(self, sql: str) -> Node:
        rows = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
        root: Node = json.loads(rows[0][0])
        return root

    def parse_select(self, sql: str) -> Node:
        """Return the only SELECT of a text. Raises SpecError."""
        parsed = self.parse(sql)
        if parsed["error"]:
            if parsed["error_type"] != "parser":
                raise SpecError("transform: write one SELECT statement")
            offset = len(sql.encode()[: int(parsed.get("position", 0))].decode(errors="ignore"))
            above = sql[:offset].split("\n")
            line, column, text = len(above), len(above[-1]) + 1, sql.split("\n")[len(above) - 1].strip()
            raise SpecError(
                f"transform: line {line}, column {column} of the SELECT: {parsed['error_message']}: `{text}`. Check "
                'the commas, and quote names that are keywords, such as "at"'
            )
        if len(parsed["statements"]) != 1:
            raise SpecError("transform: write one SELECT statement")
        node: Node = parsed["statements"][0]["node"]
        if node["type"] != "SELECT_NODE":
            raise SpecError("transform: write one SELECT, without UNION, VALUES and the like")
        return node

    def to_sql(self, expression: Node) -> str:
        statement = self._template
        statement["statements"][0]["node"]["select_list"] = [expression]
        rows = self._connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(statement)]).fetchall()
        return str(rows[0][0]).removeprefix("SELECT ").strip()

    def constant(self, expression: Node) -> Any:
        """Return the value of an allowed expression without fields; None if it has fields, fails or is null."""
        import duckdb  # as in open_connection

        if any(node["class"] in {"COLUMN_REF", "LAMBDA"} for node in find_nodes(expression)):
            return None
        key = json.dumps(expression)
        if key not in self._constants:
            self._constants[key] = None
            with suppress(duckdb.Error):
                ((self._constants[key],),) = self._connection.execute(f"SELECT {self.to_sql(expression)}").fetchall()
        return self._constants[key]


class ExpressionChecker:
    def __init__(self, tree: SqlTree, fields: Mapping[str, str], alias: str) -> None:
        """`fields` has the names of the record's fields by their lower-case names."""
        self._tree, self._fields, self._alias = tree, fields, alias.lower()
        stable, macros = _load_functions()
        self._stable, self._macros = set(stable), dict(macros)

    def problems(self, part: Any, names: Collection[str] = ()) -> Iterator[str]:
        """Yield why an expression is not allowed. `names` are parameters of enclosing lambdas and macros."""
        if isinstance(part, list):
            for inner in part:
                yield from self.problems(inner, names)
            return
        if not isinstance(part, dict):
            return
        kind = part.get("class", "TYPE")
        if kind not in _ALLOWED_CLASSES:
            label = _REJECTED_CLASSES.get(kind, kind)
            yield f"{label} is not allowed: use only functions of the record's fields"
            return
        if kind == "LAMBDA":
            parameters, problem = self._lambda_parameters(part)
            yield from [problem] * bool(problem)
            names = {*names, *parameters}
        inner_problems = [problem for value in part.values() for problem in self.problems(value, names)]
        yield from inner_problems
        if kind == "COLUMN_REF":
            yield from self._column_problems(part["column_names"], names)
        elif kind == "FUNCTION":
            yield from self._function_problems(part, lengths=not inner_problems)

    def _column_problems(self, path: Sequence[str], names: Collection[str]) -> Iterator[str]:
        first = path[0].lower()
        is_qualified = first == self._alias and len(path) > 1 and path[1].lower() in self._fields
        if not (first in names or first in self._fields or path[0].startswith(UNNESTED) or is_qualified):
            fields = ", ".join(self._fields.values())
            yield f"{'.'.join(path)} is not a field of records (fields: {fields})"

    def _lambda_parameters(self, part: Node) -> tuple[list[str], str]:
        """Return a lambda's parameters (none for `a -> '$.b'`, which reads JSON), and the problem of any other `->`."""
        columns = [node["column_names"] for node in find_nodes(part["lhs"]) if node["class"] == "COLUMN_REF"]
        if part["syntax_type"] != "SINGLE_ARROW":
            return [path[0].lower() for path in columns], ""
        if all(path[0].lower() in {*self._fields, self._alias} for path in columns):
            return [], ""
        return [], "`->` reads JSON; write a function of list elements as `lambda x: …`"

    def _function_problems(self, call: Node, *, lengths: bool) -> Iterator[str]:
        """Yield a call's problems. Without `lengths`, the arguments are not evaluated."""
        name = call["function_name"].lower()
        if call["schema"] or call["catalog"] or call["filter"] or call["distinct"] or call["order_bys"]["orders"]:
            yield f"{name} is called as an aggregate or with a schema name; write only its name and arguments"
        elif name not in self._stable and (problem := self._macro_problem(name)):
            yield problem
        elif lengths:
            arguments = [argument["expression"] for argument in call["arguments"]]
            yield from self._argument_problems(name, arguments)
            if self._max_length(call) > MAX_RESULT_LENGTH:
                yield f"{name}: nested lengths make a result longer than {MAX_RESULT_LENGTH:,}"

    def _argument_problems(self, name: str, arguments: Sequence[Node]) -> Iterator[str]:
        if name in _AGGREGATES_BY_NAME and not all(_is_repeatable(self._tree.constant(a)) for a in arguments[1:2]):
            yield f"{name}: name the aggregate as a constant; approx…, reservoir… and any_value are refused"
        if not all(0 <= self._length(argument) <= MAX_RESULT_LENGTH for argument in _length_arguments(name, arguments)):
            yield (
                f"{name}: its length must be a constant up to {MAX_RESULT_LENGTH:,}, because otherwise a record could "
                "use unlimited memory"
            )
        first, end, limit = _SHORT_ARGUMENTS.get(name, (0, 0, 0))
        if not all(self._is_short(argument, limit) for argument in arguments[first:end]):
            rule = f"argument {first + 1} must be a constant" if first else "its arguments must be constants"
            yield (
                f"{name}: {rule} or left(…, n) with n up to {limit:,}, because otherwise a record could use unlimited "
                "time and memory"
            )
        if name in {"format", "printf"} and not (arguments and _has_fixed_widths(self._tree.constant(arguments[0]))):
            yield f"{name}: its format must be a constant, without widths from other arguments"

    def _macro_problem(self, name: str) -> str:
        if name not in self._macros:
            return f"{name} is not a function of one record that always gives the same result"
        parameters, definition = self._macros.pop(name)  # otherwise a recursive macro would never end
        inner = self._tree.parse_select(f"SELECT {definition}")["select_list"]
        if any(self.problems(inner, {parameter.lower() for parameter in parameters})):
            return f"{name} uses functions that may return different results for the same record"
        self._stable.add(name)
        return ""

    def _length(self, expression: Node) -> int:
        """Return a constant length, which may be a text of digits; -1 if unknown."""
        value = self._tree.constant(expression)
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            return int(value)
        return value if isinstance(value, int) else -1

    def _is_short(self, expression: Node, limit: int) -> bool:
        """Return whether an expression is a constant text, such as `chr(10)`, or a text that `left` shortens."""
        if _is_left_call(expression):
            return 0 < self._length(expression["arguments"][-1]["expression"]) <= limit
        return isinstance(self._tree.constant(expression), str)

    def _max_length(self, part: Any) -> int:
        """Return an upper bound (at least 1) of the result's length: the product of nested calls' length arguments."""
        if isinstance(part, list):
            return max(map(self._max_length, part), default=1)
        if not isinstance(part, dict):
            return 1
        if part.get("class") != "FUNCTION":
            return max(map(self._max_length, part.values()), default=1)
        arguments = [argument["expression"] for argument in part["arguments"]]
        sizes = [self._max_length(argument) for argument in arguments]
        if any(argument["class"] == "LAMBDA" for argument in arguments):
            return prod(sizes)
        name = part["function_name"].lower()
        lengths = [self._length(argument) for argument in _length_arguments(name, arguments)]
        lengths += [self._inserted_length(argument) for argument in arguments[2:3] if name in _REPLACEMENTS]
        return max([1, *sizes]) * max([1, *lengths])

    def _inserted_length(self, text: Node) -> int:
        if _is_left_call(text):
            return self._length(text["arguments"][-1]["expression"])
        return len(str(self._tree.constant(text) or ""))


def _length_arguments(name: str, arguments: Sequence[Node]) -> Sequence[Node]:
    first, end = _LENGTH_ARGUMENTS.get(name, (0, 0))
    return arguments[first:end]


def _is_left_call(expression: Node) -> bool:
    return bool(expression["class"] == "FUNCTION" and expression["function_name"].lower() == "left")


def _has_fixed_widths(text: object) -> bool:
    digits = max((len(run) for run in re.findall(r"\d+", str(text))), default=0)
    return isinstance(text, str) and "*" not in text and digits < 6 and not re.search(r"\{[^}]*\{", text)


def _is_repeatable(name: object) -> bool:
    is_name = isinstance(name, str) and name.isidentifier()
    return is_name and not str(name).lower().startswith(("reservoir", "approx", "any_value"))


@lru_cache(maxsize=1)
def _load_functions() -> tuple[frozenset[str], Mapping[str, tuple[list[str], str]]]:
    """Return the names of stable functions, and each scalar macro's parameters and definition."""
    query = (
        "SELECT lower(function_name), function_type, stability, parameters, macro_definition FROM duckdb_functions()"
    )
    with open_connection() as connection:
        rows = connection.execute(query).fetchall()
    kinds: dict[str, set[tuple[str, str | None]]] = {}
    macros: dict[str, tuple[list[str], str]] = {}
    overloaded = set()
    for name, kind, stability, parameters, definition in rows:
        kinds.setdefault(name, set()).add((kind, stability if kind == "scalar" else None))
        if kind == "macro":
            overloaded |= {name} & macros.keys()
            macros[name] = (list(parameters), definition)
    stable = {
        name
        for name, forms in kinds.items()
        if ("scalar", "CONSISTENT") in forms and forms <= {("scalar", "CONSISTENT"), ("table", None)}
    }
    inner = {name for name in stable if name.startswith(("__internal", "json_serialize"))}
    usable = {name: macro for name, macro in macros.items() if {k for k, _ in kinds[name]} == {"macro"}}
    return frozenset(stable - inner - _UNSTABLE_FUNCTIONS), {
        n: m for n, m in usable.items() if n not in overloaded | _UNSTABLE_FUNCTIONS
    }
