"""Checks a declared `transform`, a SELECT that computes columns from one record, and prepares it for executors. DuckDB
parses it and computes the columns' types. All problems are reported at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.errors import SpecError, first_line
from frazil.ingest.contract import Transform, TransformedColumn
from frazil.ingest.transform_expressions import ExpressionChecker, Node, SqlTree, find_nodes
from frazil.ingest.transform_sql import (
    ROW,
    UNNESTED,
    full_query,
    kept_records_query,
    open_connection,
    select_query,
    try_expression,
    type_text,
    unnest_query,
)
from frazil.spec.iceberg import records_schema, table_schema, variant_columns
from frazil.spec.model import StreamSpec

_REJECTED_CLAUSES = {
    "cte_map": "WITH",
    "group_expressions": "GROUP BY",
    "group_sets": "GROUP BY",
    "having": "HAVING",
    "qualify": "QUALIFY",
    "sample": "USING SAMPLE",
}
_REJECTED_MODIFIERS = {"LIMIT_MODIFIER": "LIMIT", "ORDER_MODIFIER": "ORDER BY", "DISTINCT_MODIFIER": "DISTINCT"}
_DIVISIONS = frozenset({"/", "//", "%", "divide", "mod"})
_COLUMN: Node = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": ""}


class CheckedTransform(NamedTuple):
    transform: Transform
    types: Mapping[str, str]


def check_transform(spec: StreamSpec) -> CheckedTransform:
    """Check the stream's transform, which must compute exactly the columns of `schema`.

    A column of an invalid declaration may have no type. Types are then checked only where they are known. Raises
    SpecError with one line for each problem, and MissingExtra without DuckDB.
    """
    names = {column.name: bool(column.type) for column in spec.columns}
    has_types = all(column.type for column in spec.record_columns)
    typed = (column if column.type else column.model_copy(update={"type": "string"}) for column in spec.columns)
    spec = spec.model_copy(update={"columns": tuple(typed)})
    assert spec.transform is not None
    schema = table_schema(spec)
    variants = variant_columns(schema)
    return _check_sql(
        spec.transform,
        spec.may_unnest,
        records_schema(spec).model_dump_json(),
        tuple(
            (field.name, ("variant" if field.name in variants else type_text(field.type)) if names[field.name] else "")
            for field in schema_to_pyarrow(schema)
            if field.name in names
        ),
        has_types=has_types,
    )


@lru_cache(maxsize=64)
def _check_sql(
    sql: str, unnests: bool, records_json: str, declared: tuple[tuple[str, str], ...], *, has_types: bool
) -> CheckedTransform:
    fields = Schema.model_validate_json(records_json)
    with open_connection() as connection:
        checker = _SelectChecker(connection, [field.name for field in fields.fields])
        transform, problems = checker.check(sql, records_json), checker.problems
        if transform.unnested and not unnests:
            problems.append("write unnest without escapes, so that its rows are numbered")
        empty = schema_to_pyarrow(fields).empty_table().append_column(ROW, pa.array([], pa.int64()))
        connection.register("records", empty)
        types = _bind_types(connection, transform, problems, checker.refused) if has_types else {}
    declared_types = dict(declared)
    problems += _compare_columns([column.name for column in transform.columns], types, declared_types)
    if problems:
        raise SpecError("\n".join(f"transform: {problem}" for problem in problems))
    return CheckedTransform(transform, {name: declared_types[name] for name in types})


def _bind_types(connection: Any, transform: Transform, problems: list[str], refused: Collection[str]) -> dict[str, str]:
    """Return each column's type. Binds expressions one by one, so that an error can name its column.

    Columns and clauses that are `refused` are not bound: binding evaluates constants.
    """
    import duckdb  # as in open_connection

    def bind(where: str, query: str) -> Any:
        try:
            return connection.sql(query).to_arrow_table().schema
        except duckdb.Error as error:
            problems.append(f"{where}: {first_line(error)}")
            return None

    if "WHERE" not in refused:
        bind("WHERE", kept_records_query(transform))
    records, can_unnest = "SELECT * FROM records", "UNNEST" not in refused
    for text in transform.unnested if can_unnest else ():
        schema = bind("UNNEST", select_query(transform, [f"{text} AS c"], source=records))
        if schema is not None and (pa.types.is_struct(kind := schema.field(0).type) or pa.types.is_map(kind)):
            problems.append(f"UNNEST: {text} is {type_text(kind)}; write a list")
            can_unnest = False
    source, types = unnest_query(transform, records), {}
    if can_unnest and bind("UNNEST", source) is not None:
        for column in transform.columns:
            if f"the column {column.name}" in refused:
                continue
            query = select_query(transform, [f"{column.expression} AS c"], source=source)
            if (schema := bind(f"the column {column.name}", query)) is not None:
                types[column.name] = type_text(schema.field(0).type)
    if not problems:
        bind("SELECT", full_query(transform))
    return types


def _compare_columns(names: Sequence[str], types: Mapping[str, str], declared: Mapping[str, str]) -> Iterator[str]:
    for name, kind in declared.items():
        if "uuid" in kind:
            yield f"a SELECT cannot compute the column {name} of type uuid; declare string, and CAST the value"
        elif name not in names:
            yield f"the SELECT does not compute the column {name} of schema"
        elif kind and name in types and types[name] != ("string" if kind == "variant" else kind):
            cast = "to_json(…)" if kind == "variant" else "CAST(… AS …)"
            problem = f"is {types[name]} in the SELECT, but {kind} in schema; write {cast}, or change schema"
            yield f"the column {name} {problem}"
    for name in names:
        if name not in declared:
            kind = f" ({types[name]})" if name in types else ""
            yield f"the column {name} of the SELECT is not a column of schema{kind}"


class _SelectChecker:
    def __init__(self, connection: Any, fields: Sequence[str]) -> None:
        self._tree = SqlTree(connection)
        self._fields = {name.lower(): name for name in fields}
        self._alias = "records"
        self._unnested: list[str] = []
        self._suspicions: dict[str, None] = {}
        self.problems: list[str] = []
        self.refused: set[str] = set()
        """Columns and clauses with problems."""

    def _refuse(self, where: str, problems: Iterable[str]) -> None:
        for problem in problems:
            self.refused.add(where)
            self.problems.append(f"{where}: {problem}")

    def check(self, sql: str, records_json: str) -> Transform:
        """Return the transform; append errors to `problems`. Raises SpecError unless it is one SELECT."""
        node = self._tree.parse_select(sql)
        self._check_clauses(node)
        expressions = ExpressionChecker(self._tree, self._fields, self._alias)
        columns = []
        for name, expression in self._select_columns(node["select_list"]):
            used, written = self._fields_of(expression), self._tree.to_sql(expression)
            plain = self._replace_unnest(expression, expressions)
            self._refuse(f"the column {name}", expressions.problems(plain))
            self._collect_may_fail(plain)
            fails = self._failure_condition(plain)
            columns.append(TransformedColumn(name, self._tree.to_sql(plain), written, used, fails))
        names = [column.name.lower() for column in columns]
        for repeated in sorted({name for name in names if names.count(name) > 1}):
            self.problems.append(f"the SELECT computes the column {repeated} twice; rename one of them with AS")
        conditions = _conjuncts(node["where_clause"])
        self._refuse("WHERE", expressions.problems(conditions))
        self._collect_may_fail(conditions)
        where, reads = tuple(map(self._tree.to_sql, conditions)), self._fields_of(conditions)
        unnested, may_fail = tuple(self._unnested), (*self._suspicions,)
        return Transform(records_json, self._alias, tuple(columns), where, reads, unnested, may_fail)

    def _check_clauses(self, node: Node) -> None:
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
        for word in dict.fromkeys(refused):
            self.problems.append(f"{word} is not allowed, because a row may depend only on its own record")

    def _select_columns(self, select_list: Sequence[Node]) -> Iterator[tuple[str, Node]]:
        for expression in select_list:
            if expression["class"] == "STAR" and not expression["columns"]:
                yield from self._expand_star(expression)
                continue
            name = expression["alias"]
            if not name and expression["class"] == "COLUMN_REF":
                name = expression["column_names"][-1]
            if name:
                yield name, {**expression, "alias": ""}
            else:
                written = self._tree.to_sql(expression)
                self.problems.append(f"{written} has no name; write AS and the column's name")

    def _expand_star(self, star: Node) -> Iterator[tuple[str, Node]]:
        without = {name.lower() for name in star["exclude_list"]}
        instead = {part["key"].lower(): part["value"] for part in star["replace_list"]}
        if star["expr"] or any(star[key] for key in ("qualified_exclude_list", "rename_list") if key in star):
            self.problems.append("`*` allows only EXCLUDE and REPLACE; otherwise, name the columns")
        if star["relation_name"].lower() not in {"", self._alias.lower()}:
            self.problems.append(f"{star['relation_name']}.* is not allowed; name each field")
        for unknown in sorted((without | instead.keys()) - self._fields.keys()):
            self.problems.append(f"`*`: {unknown} is not a field of records")
        for lower, name in self._fields.items():
            if lower not in without:
                yield name, instead.get(lower, {**_COLUMN, "column_names": [name]})

    def _fields_of(self, expression: Any) -> tuple[str, ...]:
        names = {
            self._fields[name.lower()]
            for node in find_nodes(expression)
            if node["class"] == "COLUMN_REF"
            for name in node["column_names"][:2]
            if name.lower() in self._fields
        }
        return tuple(sorted(names))

    def _replace_unnest(self, expression: Any, expressions: ExpressionChecker) -> Any:
        """Replace each UNNEST by a column, which an inner query computes."""
        if isinstance(expression, list):
            return [self._replace_unnest(part, expressions) for part in expression]
        if not isinstance(expression, dict):
            return expression
        if expression.get("class") == "FUNCTION" and expression["function_name"].lower() == "unnest":
            arguments = [argument["expression"] for argument in expression["arguments"]]
            self._refuse("UNNEST", ["write one list"] * (len(arguments) != 1))
            self._refuse("UNNEST", expressions.problems(arguments))
            name = f"{UNNESTED}{len(self._unnested)}"
            self._unnested += map(self._tree.to_sql, arguments[:1])
            return {**_COLUMN, "column_names": [name], "alias": expression["alias"]}
        return {key: self._replace_unnest(value, expressions) for key, value in expression.items()}

    def _failure_condition(self, expression: Node) -> str:
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
        return f"{try_expression(self._tree.to_sql(expression))} IS NULL"

    def _cast_failure_condition(self, cast: Node) -> str:
        child, cast_text = (self._tree.to_sql(_use_try_casts(part)) for part in (cast["child"], cast))
        return "false" if cast["try_cast"] else f"{child} IS NOT NULL AND {cast_text} IS NULL"

    def _collect_may_fail(self, part: Any) -> None:
        if isinstance(part, list):
            for inner in part:
                self._collect_may_fail(inner)
        elif isinstance(part, dict) and part.get("class") not in {"LAMBDA", "TYPE"}:
            if part.get("class") == "CAST" and not part["try_cast"]:
                self._suspicions[self._cast_failure_condition(part)] = None
            if part.get("class") == "FUNCTION" and part["function_name"] in _DIVISIONS:
                divisor = self._tree.to_sql(_use_try_casts(part["arguments"][-1]["expression"]))
                self._suspicions[f"{divisor} = 0"] = None
            for value in part.values():
                self._collect_may_fail(value)


def _use_try_casts(part: Any) -> Any:
    if isinstance(part, list):
        return [_use_try_casts(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    lenient = {key: _use_try_casts(value) for key, value in part.items()}
    return {**lenient, "try_cast": True} if part.get("class") == "CAST" else lenient


def _conjuncts(where: Node | None) -> list[Node]:
    if where is None:
        return []
    if where["class"] == "CONJUNCTION" and where["type"] == "CONJUNCTION_AND":
        return [part for child in where["children"] for part in _conjuncts(child)]
    return [where]
