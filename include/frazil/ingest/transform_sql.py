"""Checks a declared `transform`, a SELECT that computes columns from one record, and prepares it for executors. DuckDB
parses it. Every part of the syntax tree must be a known pure function of one record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.errors import SpecError
from frazil.extras import report_missing_extras
from frazil.ingest.contract import Transform, TransformedColumn
from frazil.spec.iceberg import records_schema
from frazil.spec.model import StreamSpec

ROW, KEEP, UNNESTED = "_frazil_row", "_frazil_keep", "_frazil_unnested_"
"""Names that a transform's queries add to the fields of `records`."""
MEMORY_LIMIT = "512MB"
"""DuckDB's memory limit in a task. A chunk takes about a tenth of this."""

_Node = dict[str, Any]
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
_REJECTED_CLAUSES = {
    "cte_map": "WITH",
    "group_expressions": "GROUP BY",
    "group_sets": "GROUP BY",
    "having": "HAVING",
    "qualify": "QUALIFY",
    "sample": "USING SAMPLE",
}
_REJECTED_MODIFIERS = {"LIMIT_MODIFIER": "LIMIT", "ORDER_MODIFIER": "ORDER BY", "DISTINCT_MODIFIER": "DISTINCT"}
_UNSTABLE_FUNCTIONS = frozenset(
    {"age", "array_grade_up", "current_localtime", "current_localtimestamp", "grade_up", "hash", "list_grade_up"}
    | {"version"}
)
"""Functions that DuckDB declares stable, although they depend on clock, zone, version or other records."""
_AGGREGATES_BY_NAME = frozenset({"aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"})
"""Functions whose second argument names an aggregate function for a list's elements."""
_LENGTH_ARGUMENTS = {
    "array_resize": 1,
    "bar": 1,
    "bitstring": 1,
    "generate_series": 0,
    "list_resize": 1,
    "lpad": 1,
    "range": 0,
    "repeat": 1,
    "rpad": 1,
}
"""Index of the first argument that sets the length of a function's result. DuckDB's memory limit ignores it."""
MAX_RESULT_LENGTH = 100_000
_COMPARISONS = ("damerau_levenshtein", "editdist3", "jaro_similarity", "jaro_winkler_similarity", "levenshtein")
_REPLACEMENTS = ("regexp_replace", "replace")
MAX_COMPARED_LENGTH = 1000
MAX_INSERTED_LENGTH = 100
_SHORT_ARGUMENTS = {
    **dict.fromkeys(_COMPARISONS, (slice(0, None), MAX_COMPARED_LENGTH)),
    **dict.fromkeys(_REPLACEMENTS, (slice(2, 3), MAX_INSERTED_LENGTH)),
}
"""Arguments whose length multiplies a function's time or memory, and their maximum length."""


def open_connection() -> Any:
    """Return a DuckDB connection with one thread, limited memory, and no access to files or the network.

    The optimizer is off, because it may reorder expressions. Raises MissingExtra.
    """
    with report_missing_extras():
        import duckdb  # only a stream with a transform needs it

    connection = duckdb.connect(
        ":memory:",
        config={
            "allow_community_extensions": False,
            "arrow_large_buffer_size": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "enable_external_access": False,
            "memory_limit": MEMORY_LIMIT,
            "threads": 1,
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("PRAGMA disable_optimizer")
    connection.execute("SET lock_configuration = true")
    return connection


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def select_query(transform: Transform, columns: Sequence[str], *, source: str) -> str:
    """Return a query that selects `columns` from `source`, which gets the transform's alias."""
    return f"SELECT {', '.join(columns)} FROM ({source}) AS {quote_name(transform.alias)}"


def try_expression(expression: str) -> str:
    """Return an SQL expression that is null exactly if `expression` fails."""
    return f"TRY(struct_pack(v := {expression}))"


def kept_records_query(transform: Transform) -> str:
    """Return a query for records that meet all conditions. Evaluation stops at the first false or null condition."""
    if not transform.where:
        return "SELECT * FROM records"
    condition = where_condition(transform)
    return f"SELECT * FROM (SELECT *, {condition} AS {KEEP} FROM records AS {quote_name(transform.alias)}) WHERE {KEEP}"


def where_condition(transform: Transform) -> str:
    condition = "true"
    for one in reversed(transform.where):
        condition = f"CASE WHEN {one} THEN {condition} ELSE false END"
    return condition


def unnest_query(transform: Transform, source: str) -> str:
    lists = [f"unnest({text}) AS {UNNESTED}{n}" for n, text in enumerate(transform.unnested)]
    return select_query(transform, ["*", *lists], source=source) if lists else source


def full_query(transform: Transform) -> str:
    """Return the query for all rows and columns. `_frazil_row` is the number of a row's record."""
    columns = [ROW, *(f"{column.expression} AS {quote_name(column.name)}" for column in transform.columns)]
    return select_query(transform, columns, source=unnest_query(transform, kept_records_query(transform)))


class CheckedTransform(NamedTuple):
    transform: Transform
    types: Mapping[str, str]


def check_transform(spec: StreamSpec) -> CheckedTransform:
    """Check the stream's transform, which must compute exactly the columns of `schema`.

    Raises SpecError with one line for each problem, and MissingExtra without DuckDB.
    """
    assert spec.transform is not None
    from frazil.spec.iceberg import table_schema  # next to its only use

    names = {column.name for column in spec.columns}
    arrow = schema_to_pyarrow(table_schema(spec))
    return _check_sql(
        spec.transform,
        spec.may_unnest,
        records_schema(spec).model_dump_json(),
        tuple((field.name, type_text(field.type)) for field in arrow if field.name in names),
    )


@lru_cache(maxsize=64)
def _check_sql(sql: str, unnests: bool, records_json: str, declared: tuple[tuple[str, str], ...]) -> CheckedTransform:
    fields = Schema.model_validate_json(records_json)
    with open_connection() as connection:
        checker = _Checker(connection, [field.name for field in fields.fields])
        found = checker.transform(sql, records_json)
        if found.unnested and not unnests:
            raise SpecError("transform: write unnest without escapes, so that its rows are numbered")
        empty = schema_to_pyarrow(fields).empty_table().append_column(ROW, pa.array([], pa.int64()))
        connection.register("records", empty)
        types = _bind_types(connection, found)
    wanted = dict(declared)
    if uuids := [name for name, kind in declared if "uuid" in kind]:
        raise SpecError(
            f"transform: a SELECT cannot compute the column {uuids[0]} of type uuid; declare string, and CAST the value"
        )
    problems = [
        f"transform: the column {name} is {types[name]} in the SELECT, but {kind} in schema; write CAST(… AS …), or "
        "change schema"
        for name, kind in declared
        if name in types and types[name] != kind
    ]
    problems += [
        f"transform: the SELECT does not compute the column {name} of schema" for name in wanted if name not in types
    ]
    problems += [
        f"transform: the column {name} of the SELECT is not a column of schema ({kind})"
        for name, kind in types.items()
        if name not in wanted
    ]
    if problems:
        raise SpecError("\n".join(problems))
    return CheckedTransform(found, types)


def _bind_types(connection: Any, found: Transform) -> dict[str, str]:
    """Return each column's type. Binds expressions one by one, so that an error can name its column."""
    import duckdb  # as in open_connection

    def bound(where: str, query: str) -> Any:
        try:
            return connection.sql(query).to_arrow_table().schema
        except duckdb.Error as error:
            reason = str(error).strip().split("\n", maxsplit=1)[0]
            raise SpecError(f"transform: {where}: {reason}") from None

    bound("WHERE", kept_records_query(found))
    source = unnest_query(found, kept_records_query(found))
    bound("UNNEST", source)
    types = {}
    for column in found.columns:
        schema = bound(f"the column {column.name}", select_query(found, [f"{column.expression} AS c"], source=source))
        types[column.name] = type_text(schema.field(0).type)
    bound("SELECT", full_query(found))
    return types


class _Checker:
    def __init__(self, connection: Any, fields: Sequence[str]) -> None:
        self._connection = connection
        self._fields = {name.lower(): name for name in fields}
        stable, macros = _load_functions()
        self._stable, self._macros = set(stable), dict(macros)
        self._template = self._serialize("SELECT 1")
        self._alias = "records"
        self._unnested: list[str] = []
        self._suspicions: dict[str, None] = {}

    def transform(self, sql: str, records_json: str) -> Transform:
        node = self._parse_statement(sql)
        self._check_clauses(node)
        columns = []
        for name, expression in self._select_columns(node["select_list"]):
            used, written = self._fields_of(expression), self._to_sql(expression)
            plain = self._replace_unnest(expression)
            self._check_expression(plain, frozenset())
            self._collect_may_fail(plain)
            columns.append(TransformedColumn(name, self._to_sql(plain), written, used, self._failure_condition(plain)))
        names = [column.name.lower() for column in columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SpecError(f"transform: the SELECT computes the column {twice} twice; rename one of them with AS")
        where = [self._check_condition(part) for part in _conjuncts(node["where_clause"])]
        used = tuple(sorted({name for part in _conjuncts(node["where_clause"]) for name in self._fields_of(part)}))
        return Transform(
            records_json, self._alias, tuple(columns), tuple(where), used, tuple(self._unnested), (*self._suspicions,)
        )

    def _serialize(self, sql: str) -> _Node:
        rows = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
        found: _Node = json.loads(rows[0][0])
        return found

    def _parse_statement(self, sql: str) -> _Node:
        parsed = self._serialize(sql)
        if parsed["error"]:
            if parsed["error_type"] != "parser":
                raise SpecError("transform: write one SELECT statement")
            raise SpecError(f'transform: {parsed["error_message"]}. Quote names that are keywords, such as "at"')
        if len(parsed["statements"]) != 1:
            raise SpecError("transform: write one SELECT statement")
        node: _Node = parsed["statements"][0]["node"]
        if node["type"] != "SELECT_NODE":
            raise SpecError("transform: write one SELECT, without UNION, VALUES and the like")
        return node

    def _check_clauses(self, node: _Node) -> None:
        table = node["from_table"]
        plain = table["type"] == "BASE_TABLE" and table["table_name"].lower() == "records"
        if not plain or any(
            table.get(key) for key in ("schema_name", "catalog_name", "column_name_alias", "at_clause")
        ):
            raise SpecError("transform: write only `FROM records`, because a row may depend only on its own record")
        self._alias = table["alias"] or "records"
        refused = [_REJECTED_MODIFIERS.get(m["type"], m["type"]) for m in node["modifiers"]]
        refused += [word for key, word in _REJECTED_CLAUSES.items() if node[key] and node[key] != {"map": []}]
        refused += ["USING SAMPLE"] * bool(table["sample"])
        refused += ["GROUP BY"] * (node["aggregate_handling"] != "STANDARD_HANDLING")
        if refused:
            raise SpecError(f"transform: {refused[0]} is not allowed, because a row may depend only on its own record")

    def _select_columns(self, select_list: Sequence[_Node]) -> Iterator[tuple[str, _Node]]:
        for expression in select_list:
            if expression["class"] == "STAR" and not expression["columns"]:
                yield from self._expand_star(expression)
                continue
            name = expression["alias"]
            if not name and expression["class"] == "COLUMN_REF":
                name = expression["column_names"][-1]
            if not name:
                raise SpecError(f"transform: {self._to_sql(expression)} has no name; write AS and the column's name")
            yield name, {**expression, "alias": ""}

    def _expand_star(self, star: _Node) -> Iterator[tuple[str, _Node]]:
        if star["expr"] or any(star[key] for key in ("qualified_exclude_list", "rename_list") if key in star):
            raise SpecError("transform: `*` allows only EXCLUDE and REPLACE; otherwise, name the columns")
        if star["relation_name"].lower() not in {"", self._alias.lower()}:
            raise SpecError(f"transform: {star['relation_name']}.* is not allowed; name each field")
        without = {name.lower() for name in star["exclude_list"]}
        instead = {part["key"].lower(): part["value"] for part in star["replace_list"]}
        if unknown := sorted((without | instead.keys()) - self._fields.keys()):
            raise SpecError(f"transform: `*`: {unknown[0]} is not a field of records")
        for lower, name in self._fields.items():
            if lower not in without:
                field = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [name]}
                yield name, instead.get(lower, field)

    def _failure_condition(self, expression: _Node) -> str:
        """Return an SQL condition that is true if the expression fails. Avoids exceptions where possible."""
        if expression["class"] in {"COLUMN_REF", "CONSTANT"}:
            return "false"
        kind = expression.get("type_expr")
        if (
            kind
            and expression["child"]["class"] == "COLUMN_REF"
            and not any(c["class"] == "TYPE" for c in kind["children"])
        ):
            return self._cast_failure_condition(expression)
        return f"{try_expression(self._to_sql(expression))} IS NULL"

    def _cast_failure_condition(self, cast: _Node) -> str:
        child, made = self._to_sql(_use_try_casts(cast["child"])), self._to_sql(_use_try_casts(cast))
        return "false" if cast["try_cast"] else f"{child} IS NOT NULL AND {made} IS NULL"

    def _collect_may_fail(self, part: Any) -> None:
        if isinstance(part, list):
            for inner in part:
                self._collect_may_fail(inner)
        elif isinstance(part, dict) and part.get("class") not in {"LAMBDA", "TYPE"}:
            if part.get("class") == "CAST" and not part["try_cast"]:
                self._suspicions[self._cast_failure_condition(part)] = None
            if part.get("class") == "FUNCTION" and part["function_name"] in _DIVISIONS:
                divisor = self._to_sql(_use_try_casts(part["arguments"][-1]["expression"]))
                self._suspicions[f"{divisor} = 0"] = None
            for value in part.values():
                self._collect_may_fail(value)

    def _check_condition(self, expression: _Node) -> str:
        self._check_expression(expression, frozenset())
        self._collect_may_fail(expression)
        return self._to_sql(expression)

    def _to_sql(self, expression: _Node) -> str:
        statement = self._template
        statement["statements"][0]["node"]["select_list"] = [expression]
        rows = self._connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(statement)]).fetchall()
        return str(rows[0][0]).removeprefix("SELECT ").strip()

    def _fields_of(self, expression: Any) -> tuple[str, ...]:
        found = {
            self._fields[name.lower()]
            for node in _find_nodes(expression)
            if node["class"] == "COLUMN_REF"
            for name in node["column_names"][:2]
            if name.lower() in self._fields
        }
        return tuple(sorted(found))

    def _replace_unnest(self, expression: Any) -> Any:
        """Replace each UNNEST by a column, which an inner query computes."""
        if isinstance(expression, list):
            return [self._replace_unnest(part) for part in expression]
        if not isinstance(expression, dict):
            return expression
        if expression.get("class") == "FUNCTION" and expression["function_name"].lower() == "unnest":
            arguments = [argument["expression"] for argument in expression["arguments"]]
            if len(arguments) != 1:
                raise SpecError("transform: UNNEST takes one list")
            self._check_expression(arguments[0], frozenset())
            self._unnested.append(self._to_sql(arguments[0]))
            name = f"{UNNESTED}{len(self._unnested) - 1}"
            return {**_COLUMN, "column_names": [name], "alias": expression["alias"]}
        return {key: self._replace_unnest(value) for key, value in expression.items()}

    def _check_expression(self, part: Any, names: Collection[str]) -> None:
        """Raise SpecError if an expression is not allowed. `names` are parameters of enclosing lambdas and macros."""
        if isinstance(part, list):
            for inner in part:
                self._check_expression(inner, names)
            return
        if not isinstance(part, dict):
            return
        match part.get("class"):
            case None:
                pass
            case "COLUMN_REF":
                self._check_column(part["column_names"], names)
            case "FUNCTION":
                self._check_function(part)
            case "LAMBDA":
                names = {*names, *self._lambda_parameters(part)}
            case known if known in _ALLOWED_CLASSES:
                pass
            case other:
                raise SpecError(
                    f"transform: {_REJECTED_CLASSES.get(other, other)} is not allowed: use only functions of the "
                    "record's fields"
                )
        for value in part.values():
            self._check_expression(value, names)

    def _check_column(self, path: Sequence[str], names: Collection[str]) -> None:
        first = path[0].lower()
        if first in names or first in self._fields or path[0].startswith(UNNESTED):
            return
        if first == self._alias.lower() and len(path) > 1 and path[1].lower() in self._fields:
            return
        known = ", ".join(self._fields.values())
        raise SpecError(f"transform: {'.'.join(path)} is not a field of records (fields: {known})")

    def _lambda_parameters(self, part: _Node) -> list[str]:
        """Return a lambda's parameters; none for `a -> '$.b'`, which reads JSON. Raises SpecError for other `->`."""
        single = part["syntax_type"] == "SINGLE_ARROW"
        columns = [node["column_names"] for node in _find_nodes(part["lhs"]) if node["class"] == "COLUMN_REF"]
        if single and not all(path[0].lower() in {*self._fields, self._alias.lower()} for path in columns):
            raise SpecError("transform: `->` reads JSON; write a function of list elements as `lambda x: …`")
        return [] if single else [path[0].lower() for path in columns]

    def _check_function(self, call: _Node) -> None:
        name = call["function_name"].lower()
        if call["schema"] or call["catalog"] or call["filter"] or call["distinct"] or call["order_bys"]["orders"]:
            raise SpecError(
                f"transform: {name} is called as an aggregate or with a schema name; write only its name and arguments"
            )
        if name in _AGGREGATES_BY_NAME and not _is_repeatable(call):
            raise SpecError(
                f"transform: {name}: name the aggregate as a constant; approx…, reservoir… and any_value are refused"
            )
        if name in _LENGTH_ARGUMENTS and not all(
            map(_is_small, call["arguments"][_LENGTH_ARGUMENTS[name] : _LENGTH_ARGUMENTS[name] + 3])
        ):
            what = (
                f"its length must be a constant up to {MAX_RESULT_LENGTH:,}, because otherwise a record could use "
                "unlimited memory"
            )
            raise SpecError(f"transform: {name}: {what}")
        of, limit = _SHORT_ARGUMENTS.get(name, (slice(0), 0))
        if not all(_is_short(argument, limit) for argument in call["arguments"][of]):
            first = of.start
            which = f"argument {first + 1} must be a constant" if first else "its arguments must be constants"
            raise SpecError(
                f"transform: {name}: {which} or left(…, n) with n up to {limit:,}, because otherwise a "
                "record could use unlimited time and memory"
            )
        if _max_length(call) > MAX_RESULT_LENGTH:
            raise SpecError(f"transform: {name}: nested lengths make a result longer than {MAX_RESULT_LENGTH:,}")
        if name in {"format", "printf"} and not _has_fixed_widths(call):
            raise SpecError(f"transform: {name}: its format must be a constant, without widths from other arguments")
        if name in self._stable:
            return
        if name not in self._macros:
            raise SpecError(f"transform: {name} is not a function of one record that always gives the same result")
        parameters, definition = self._macros.pop(name)  # otherwise a recursive macro would never end
        try:
            inner = self._parse_statement(f"SELECT {definition}")["select_list"]
            self._check_expression(inner, {parameter.lower() for parameter in parameters})
        except SpecError:
            raise SpecError(
                f"transform: {name} uses functions that may return different results for the same record"
            ) from None
        self._stable.add(name)


_DIVISIONS = frozenset({"/", "//", "%", "divide", "mod"})


def _use_try_casts(part: Any) -> Any:
    if isinstance(part, list):
        return [_use_try_casts(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    lenient = {key: _use_try_casts(value) for key, value in part.items()}
    return {**lenient, "try_cast": True} if part.get("class") == "CAST" else lenient


_COLUMN: _Node = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": ""}


def _is_small(argument: _Node) -> bool:
    """Return whether an argument is a constant that limits the length of the result."""
    literal = argument["expression"].get("literal", {})
    if argument["expression"]["class"] != "CONSTANT" or literal.get("kind") == "STRING":
        return bool(argument["expression"]["class"] == "CONSTANT")
    text = str(literal.get("text", ""))
    return text.isdecimal() and int(text) <= MAX_RESULT_LENGTH


def _is_short(argument: _Node, limit: int) -> bool:
    """Return whether an argument is a constant, such as `chr(10)`, or a text that `left` shortens to `limit`."""
    expression = argument["expression"]
    if _is_cut(expression):
        length = expression["arguments"][-1]
        return 0 < _constant_value(length["expression"]) <= limit and _is_small(length)
    return _max_length(expression) == 1 and all(node["class"] != "COLUMN_REF" for node in _find_nodes(expression))


def _max_length(part: Any) -> int:
    """Return a bound, at least 1, for the result's length: the product of the length arguments of nested calls."""
    if isinstance(part, list):
        return max(map(_max_length, part), default=1)
    if not isinstance(part, dict):
        return 1
    if part.get("class") != "FUNCTION":
        return max(map(_max_length, part.values()), default=1)
    arguments = part["arguments"]
    sizes = [_max_length(argument) for argument in arguments]
    if any(argument["expression"]["class"] == "LAMBDA" for argument in arguments):
        return prod(sizes)
    name = part["function_name"].lower()
    lengths = arguments[_LENGTH_ARGUMENTS[name] : _LENGTH_ARGUMENTS[name] + 3] if name in _LENGTH_ARGUMENTS else []
    own = [_constant_value(argument["expression"]) for argument in lengths]
    own += [_inserted_length(argument["expression"]) for argument in arguments[2:3] if name in _REPLACEMENTS]
    return max(sizes, default=1) * max(own, default=1)


def _inserted_length(text: _Node) -> int:
    """Return a bound for the length of a text that `_is_short`."""
    if _is_cut(text):
        return _constant_value(text["arguments"][-1]["expression"])
    return len(str(text.get("literal", {}).get("text", "")))


def _is_cut(expression: _Node) -> bool:
    return bool(expression["class"] == "FUNCTION" and expression["function_name"].lower() == "left")


def _constant_value(expression: _Node) -> int:
    text = str(expression.get("literal", {}).get("text", ""))
    return max(1, int(text)) if expression["class"] == "CONSTANT" and text.isdecimal() else 1


def _has_fixed_widths(call: _Node) -> bool:
    first = call["arguments"][0]["expression"] if call["arguments"] else {}
    text = str(first.get("literal", {}).get("text", "")) if first.get("class") == "CONSTANT" else "*"
    digits = max((len(run) for run in re.findall(r"\d+", text)), default=0)
    return "*" not in text and digits < 6 and not re.search(r"\{[^}]*\{", text)


def _is_repeatable(call: _Node) -> bool:
    named = [argument["expression"] for argument in call["arguments"][1:2]]
    texts = [str(one.get("literal", {}).get("text", "")).lower() for one in named if one["class"] == "CONSTANT"]
    return bool(texts) and texts[0].isidentifier() and not texts[0].startswith(("reservoir", "approx", "any_value"))


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
        for name, of in kinds.items()
        if ("scalar", "CONSISTENT") in of and of <= {("scalar", "CONSISTENT"), ("table", None)}
    }
    inner = {name for name in stable if name.startswith(("__internal", "json_serialize"))}
    usable = {name: macro for name, macro in macros.items() if {k for k, _ in kinds[name]} == {"macro"}}
    return frozenset(stable - inner - _UNSTABLE_FUNCTIONS), {
        n: m for n, m in usable.items() if n not in overloaded | _UNSTABLE_FUNCTIONS
    }


def _find_nodes(part: Any) -> Iterator[_Node]:
    if isinstance(part, list):
        for inner in part:
            yield from _find_nodes(inner)
    elif isinstance(part, dict):
        if "class" in part:
            yield part
        for value in part.values():
            yield from _find_nodes(value)


def _conjuncts(where: _Node | None) -> list[_Node]:
    if where is None:
        return []
    if where["class"] == "CONJUNCTION" and where["type"] == "CONJUNCTION_AND":
        return [part for child in where["children"] for part in _conjuncts(child)]
    return [where]


_TYPE_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}


def type_text(kind: pa.DataType) -> str:  # noqa: PLR0911 - a case for each kind of type
    """Return an Arrow type in Iceberg's notation, or else Arrow's name. `fixed` becomes `binary`, as in DuckDB."""
    if kind in _TYPE_NAMES:
        return _TYPE_NAMES[kind]
    if isinstance(kind, pa.UuidType):
        return "uuid"
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return f"struct<{', '.join(f'{field.name}: {type_text(field.type)}' for field in fields)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    return str(kind)
