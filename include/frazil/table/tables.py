"""Creates a stream's tables if missing, checks and safely evolves existing ones, and knows where their files lie."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import NestedField
from sqlalchemy.exc import IntegrityError

from frazil.errors import CommitUnavailable, SchemaIncompatible, SpecError, TableLost
from frazil.spec import iceberg
from frazil.spec.coordinates import COORDINATES
from frazil.spec.model import StreamSpec
from frazil.spec.types import UNREADABLE
from frazil.table.catalogs import catalog_errors, existing_catalog
from frazil.table.evolution import (
    ACCEPTED_SCHEMA,
    Addition,
    Change,
    Conflict,
    Promotion,
    Relaxation,
    differences,
    relaxed,
)
from frazil.table.growth import Growth, growth
from frazil.table.remains import STATE, Remains, place_of_new, remains_of
from frazil.table.renamed import former_columns, renamed_fields

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2

DEFAULT_PROPERTIES = {
    "format-version": str(FORMAT_VERSION),
    "write.parquet.compression-codec": "zstd",
    # A commit a minute leaves 1,440 metadata files a day: keep the last hundred.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # Compaction beside a writer that commits every few seconds loses some races: Iceberg's default is 4.
    "commit.retry.num-retries": "10",
}
MAIN_PROPERTIES = DEFAULT_PROPERTIES | {
    # Half the bytes and a third less CPU. Signals and dead letters are few: every reader shall be able to read them.
    "write.parquet.format-version": "v2",
}
EVOLUTION_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A table as it would be created."""

    identifier: str
    schema: Schema
    partitioning: PartitionSpec
    order: SortOrder = field(default_factory=lambda: SortOrder(order_id=0))
    properties: dict[str, str] = field(default_factory=lambda: dict(DEFAULT_PROPERTIES))
    location: str | None = None
    declarable: frozenset[str] = frozenset()
    """Columns from a person's declaration; all others are frazil's own."""
    relaxable: frozenset[str] = frozenset()
    """Declared columns that may be optional in the table though they are declared `not null`, nested fields included:
    the table evolved."""


def ensure_table(catalog: Catalog, spec: StreamSpec) -> Table:
    """The stream's table: created if missing, evolved if that is safe, refused otherwise.

    A table that is partitioned or sorted otherwise than declared stays as it is, with a warning.
    Raises SpecError where a new column could not be read by an engine, TableLost where a new table would be made in
    another one's folder, SchemaIncompatible, AccessDenied, CommitUnavailable.
    """
    declared = _declared_table(spec)
    table = ensure_declared(catalog, declared, spec.name)
    _warn_of_another_layout(table, declared, spec.name)
    return table


def ensure_dead_letters(catalog: Catalog, spec: StreamSpec) -> Table:
    """The table of the stream's dead letters, created if missing. Raises as `ensure_table` does."""
    return ensure_declared(catalog, _declared_dead_letters(spec), spec.name)


def check_fits(table: Table, spec: StreamSpec) -> None:
    """Check that the stream's table does not contradict the declaration; it may lack what the next start adds.

    Raises SchemaIncompatible.
    """
    _evolutions(table, _declared_table(spec), spec.name)


def check_stageable(main: Table, dead_letters: Table, spec: StreamSpec) -> None:
    """Check that rows of the declared schema fit both current tables, which others may have changed since the start.

    Raises SchemaIncompatible.
    """
    for table, declared in ((main, _declared_table(spec)), (dead_letters, _declared_dead_letters(spec))):
        if lacking := _evolutions(table, declared, spec.name):
            columns = ", ".join(".".join(change.path) for change in lacking)
            raise SchemaIncompatible(
                f"stream {spec.name}: the table {_name(table)} does not have all that is declared yet ({columns}); the "
                f"writer's next start brings it: `frazil restart {spec.name}`"
            )


def _declared_table(spec: StreamSpec) -> DeclaredTable:
    schema = iceberg.schema(spec)
    return DeclaredTable(
        identifier=spec.table.identifier,
        schema=schema,
        partitioning=iceberg.partition_spec(spec, schema),
        order=iceberg.sort_order(spec, schema),
        properties=MAIN_PROPERTIES | spec.table.properties,
        location=spec.table.location,
        declarable=frozenset(column.name for column in spec.columns),
        relaxable=_relaxable(spec) if spec.evolution.mode == "full" else frozenset(),
    )


def _relaxable(spec: StreamSpec) -> frozenset[str]:
    """All columns but the event time, which every row must have."""
    return frozenset(column.name for column in spec.columns) - {spec.event_time.column}


def _declared_dead_letters(spec: StreamSpec) -> DeclaredTable:
    return DeclaredTable(
        identifier=dead_letter_identifier(spec),
        schema=iceberg.DEAD_LETTER_SCHEMA,
        partitioning=iceberg.DEAD_LETTER_PARTITION_SPEC,
    )


def dead_letter_identifier(spec: StreamSpec) -> str:
    """The declared identifier, or `<table>_dead_letters`."""
    return spec.dead_letter_table


def data_location(table: Table) -> str:
    """The folder of data files: `write.data.path`, or `<location>/data`; without trailing slash."""
    return (table.properties.get("write.data.path") or f"{table.location().rstrip('/')}/data").rstrip("/")


def state_location(table: Table, stream: str) -> str:
    """The folder of a stream's journals and desired state: `<location>/_frazil/<stream>`.

    Spark's remove_orphan_files skips names that begin with an underscore.
    """
    return f"{table.location().rstrip('/')}/{STATE}/{stream}"


def may_delete_files(properties: Mapping[str, str]) -> bool:
    """Whether a table's files are its own: `gc.enabled` is false where another table may share them.

    Like Iceberg, takes everything except "true" for false.
    """
    return properties.get("gc.enabled", "true").lower() == "true"


def ensure_declared(catalog: Catalog, declared: DeclaredTable, stream: str) -> Table:
    """A declared table, on behalf of a stream. Raises as `ensure_table` does."""
    with catalog_errors(catalog.name):
        try:
            table = catalog.load_table(declared.identifier)
        except NoSuchTableError:
            table = _create(catalog, declared)
        _check_format_version(table)
        return _evolve(table, declared, stream)


def _create(catalog: Catalog, declared: DeclaredTable) -> Table:
    """Create the namespace and the table. Another process may do the same at once; either may win."""
    _refuse_unreadable(declared.schema, declared.identifier)
    parts = declared.identifier.split(".")
    for depth in range(1, len(parts)):
        _ensure_namespace(catalog, tuple(parts[:depth]))
    found = _remains(catalog, declared)
    try:
        if found is not None:
            # It may have been made, and written to, since it was searched.
            return catalog.load_table(declared.identifier)
        return catalog.create_table(
            declared.identifier,
            declared.schema,
            location=declared.location,
            partition_spec=declared.partitioning,
            sort_order=declared.order,
            properties=declared.properties,
        )
    except TableAlreadyExistsError:
        return catalog.load_table(declared.identifier)
    except NoSuchTableError:
        if found is None:
            raise
        raise TableLost(_lost(catalog, declared.identifier, found)) from None


def _remains(catalog: Catalog, declared: DeclaredTable) -> Remains | None:
    place = place_of_new(
        catalog,
        declared.identifier,
        declared.schema,
        location=declared.location,
        properties=declared.properties,
    )
    return remains_of(place) if place else None


def _lost(catalog: Catalog, identifier: str, found: Remains) -> str:
    """What to do about a table that its catalog does not have."""
    ways = ["Let FRAZIL_HOME or .pyiceberg.yaml name the right catalog"]
    if found.newest is not None:
        ways.append(f"register the table again: `{_registration(catalog, identifier, found.newest.path)}`")
    return (
        f"the table {identifier} is not in the catalog {catalog.name!r}, and its location {found.location} holds one: "
        f"{found}. The catalog may have been lost or exchanged. {', or '.join(ways)}. If the table was dropped on "
        "purpose, move that folder away, or declare another `table.location`"
    )


def _registration(catalog: Catalog, identifier: str, metadata: str) -> str:
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    return (
        f'python -c "from frazil.table.catalogs import load_catalog; c = load_catalog({catalog.name!r}); '
        f'c.create_namespace_if_not_exists({namespace!r}); c.register_table({identifier!r}, {metadata!r})"'
    )


def _ensure_namespace(catalog: Catalog, namespace: tuple[str, ...]) -> None:
    if catalog.namespace_exists(namespace):
        return
    try:
        catalog.create_namespace(namespace)
    except (NamespaceAlreadyExistsError, IntegrityError):
        # Another process created it between our check and our insert: SqlCatalog's primary key refuses it.
        return


def _check_format_version(table: Table) -> None:
    version = table.metadata.format_version
    if version != FORMAT_VERSION:
        way_out = (
            "upgrade it (ALTER TABLE … SET TBLPROPERTIES ('format-version' = '2'))"
            if version < FORMAT_VERSION
            else "write to a new table"
        )
        raise SchemaIncompatible(
            f"{_name(table)} has Iceberg format version {version}; frazil writes version {FORMAT_VERSION}: {way_out}"
        )


def _evolve(table: Table, declared: DeclaredTable, stream: str) -> Table:
    """Evolve the table to the declared schema in one update; another process may do the same."""
    for _ in range(EVOLUTION_ATTEMPTS):
        changes = _evolutions(table, declared, stream)
        if not changes:
            return table
        try:
            _apply(table, changes)
        except CommitFailedException:
            logger.info("the schema of %s changed while stream %s evolved it; trying again", _name(table), stream)
        table = table.catalog.load_table(table.name())
    raise _never_evolved(table, stream)


def _evolutions(table: Table, declared: DeclaredTable, stream: str) -> list[Addition | Promotion]:
    """The evolutions to the declared schema. Raises SchemaIncompatible if they are not all safe."""
    existing = table.schema()
    wanted = _adoptable(_as_renamed(declared, table), existing)
    found = differences(wanted, existing, _former_schemas(table), declarable=declared.declarable)
    if conflicts := [difference for difference in found if isinstance(difference, Conflict)]:
        raise SchemaIncompatible(_refusal(table, conflicts, stream))
    return [difference for difference in found if not isinstance(difference, Conflict)]


def _former_schemas(table: Table) -> list[Schema]:
    """The former schemas from the oldest to the newest, without those before the one that a person accepted."""
    accepted = table.properties.get(ACCEPTED_SCHEMA, "")
    first = int(accepted) if accepted.isdecimal() else 0
    schemas = sorted(table.metadata.schemas, key=lambda schema: schema.schema_id)
    return [schema for schema in schemas if schema.schema_id >= first]


def _as_renamed(declared: DeclaredTable, table: Table) -> DeclaredTable:
    """The declaration with the names that people gave the table's columns by `frazil evolve`."""
    if not (former := former_columns(table.properties)):
        return declared
    schema = renamed_fields(declared.schema, table.schema(), former)
    new = {field.name for field in schema.fields} - {field.name for field in declared.schema.fields}
    relaxable = declared.relaxable and declared.relaxable | new
    return replace(declared, schema=schema, declarable=declared.declarable | new, relaxable=relaxable)


def _adoptable(declared: DeclaredTable, existing: Schema) -> Schema:
    """Let frazil's own columns be optional: it always has a value, and tables may have got them later."""
    there = {field.name: field for field in existing.fields}

    def adopted(field: NestedField) -> NestedField:
        found = there.get(field.name)
        if found is not None and field.name in declared.relaxable:
            return relaxed(field, found)
        is_required = field.name not in COORDINATES if found is None else found.required
        if is_required or field.name in declared.declarable:
            return field
        return field.model_copy(update={"required": False})

    return Schema(*map(adopted, declared.schema.fields), schema_id=declared.schema.schema_id)


def _refuse_unreadable(coming: Schema, table: str) -> None:
    """Refuse to add a column that would make the whole table unreadable to an engine. Raises SpecError."""
    for path in coming.column_names:
        if reason := UNREADABLE.get(str(coming.find_type(path))):
            raise SpecError(f"schema.{path}: {coming.find_type(path)} would come into the table {table}: {reason}")


def undeclared_columns(table: Table, spec: StreamSpec) -> tuple[str, ...]:
    """The top-level columns that a stream fills beside the declared ones and frazil's own, such as `gate string`."""
    declared = _as_renamed(_declared_table(spec), table).schema
    known = {field.name for field in declared.fields} | {*COORDINATES}
    return tuple(f"{field.name} {field.field_type}" for field in table.schema().fields if field.name not in known)


def evolve(table: Table, spec: StreamSpec, asked: Sequence[Change]) -> Growth:
    """Change a stream's table as its records ask, in one update. Returns the changes that were made, and the refusals.

    Another stream may do the same: each of them looks at what the other has made of the table. Raises
    CommitUnavailable, AccessDenied.
    """
    fixed = frozenset({spec.event_time.column, *COORDINATES})
    with catalog_errors(table.catalog.name):
        for _ in range(EVOLUTION_ATTEMPTS):
            found = growth(
                table.schema(),
                _former_schemas(table),
                asked,
                max_columns=spec.evolution.max_columns,
                fixed=fixed,
            )
            if not found.changes:
                return found
            try:
                _apply(table, found.changes)
            except CommitFailedException:
                logger.info("the schema of %s changed while stream %s evolved it", _name(table), spec.name)
            else:
                return found
            table = table.catalog.load_table(table.name())
    raise _never_evolved(table, spec.name)


def _never_evolved(table: Table, stream: str) -> CommitUnavailable:
    return CommitUnavailable(
        f"stream {stream}: the schema of {_name(table)} changed at each of {EVOLUTION_ATTEMPTS} attempts to evolve it"
    )


def _apply(table: Table, changes: Sequence[Change]) -> None:
    for change in changes:
        if not isinstance(change, Relaxation):
            _refuse_unreadable(Schema(NestedField(-1, ".".join(change.path), change.type)), _name(table))
    with table.update_schema() as update:
        for change in changes:
            match change:
                case Addition():
                    update.add_column(change.path, change.type, doc=change.doc, required=False)
                case Promotion():
                    update.update_column(change.path, field_type=change.type)
                case Relaxation():
                    update.make_column_optional(change.path)
    for change in changes:
        logger.info("%s: %s", _name(table), told(change))


def told(change: Change) -> str:
    """A change that was made, in words."""
    column = f"column {'.'.join(change.path)}"
    match change:
        case Addition():
            return f"added {column} {change.type}"
        case Promotion():
            return f"widened {column} to {change.type}"
    return f"made {column} optional"


def _refusal(table: Table, conflicts: Sequence[Conflict], stream: str) -> str:
    lines = [f"column {'.'.join(conflict.path)} {conflict.message}" for conflict in conflicts]
    return f"stream {stream}: the declared schema does not fit the table {_name(table)}: " + "; ".join(lines)


def _warn_of_another_layout(table: Table, declared: DeclaredTable, stream: str) -> None:
    """Warn only: the declared layout is for a new table, and changing an existing one's is a person's decision."""
    for word, wanted, found in (
        (
            "partitioning",
            _partition_terms(declared.partitioning, declared.schema),
            _partition_terms(table.spec(), table.schema()),
        ),
        ("sort order", _sort_terms(declared.order, declared.schema), _sort_terms(table.sort_order(), table.schema())),
    ):
        if wanted and wanted != found:
            logger.warning(
                "stream %s declares the %s [%s], and %s has [%s]: the table's is used",
                stream, word, ", ".join(wanted), _name(table), ", ".join(found),
            )  # fmt: skip


def _partition_terms(partitioning: PartitionSpec, schema: Schema) -> list[str]:
    return [f"{field.transform}({schema.find_column_name(field.source_id)})" for field in partitioning.fields]


def _sort_terms(order: SortOrder, schema: Schema) -> list[str]:
    return [
        f"{f.transform}({schema.find_column_name(f.source_id)}) {f.direction.value} {f.null_order.value}"
        for f in order.fields
    ]


def _name(table: Table) -> str:
    return ".".join(table.name())


def load_stream_table(spec: StreamSpec) -> Table | None:
    """The stream's table as it stands now, or None. Makes nothing, no catalog either."""
    catalog = existing_catalog(spec.table.catalog)
    with catalog_errors(catalog.name):
        try:
            return catalog.load_table(spec.table.identifier)
        except NoSuchTableError:
            return None


def lost_table(spec: StreamSpec) -> str | None:
    """Why a stream's table that is not in its catalog is no new one, as a sentence; None where it may be made.

    For reading alone: it asks nothing of a server that knows no such namespace. Raises what catalog and storage raise.
    """
    catalog = existing_catalog(spec.table.catalog)
    with catalog_errors(catalog.name):
        if catalog.table_exists(spec.table.identifier):
            return None
        found = _remains(catalog, _declared_table(spec))
    return _lost(catalog, spec.table.identifier, found) if found else None


def stream_catalog(spec: StreamSpec) -> Catalog:
    """The catalog of a stream's table, for everybody but its writer: it is not made if it does not exist.

    Raises TableLost if the catalog lost the table, and what `lost_table` raises.
    """
    if lost := lost_table(spec):
        raise TableLost(f"stream {spec.name!r}: {lost}")
    return existing_catalog(spec.table.catalog)


def not_there(identifier: str, specs: Iterable[StreamSpec]) -> TableLost | SpecError:
    """The error for a table that its catalog does not have: lost with a table of these streams, or not made yet.

    Raises as `lost_table` does.
    """
    for spec in specs:
        if lost := lost_table(spec):
            return TableLost(lost)
    return SpecError(f"there is no table {identifier} yet: its writer's first start makes it")


def missing_table(spec: StreamSpec, *, committed: bool) -> str | None:
    """What is wrong where the catalog does not have a stream's table; None before the stream's first start.

    `committed`: a writer of this host committed to it. Raises as `lost_table` does.
    """
    if found := lost_table(spec):
        return f"{TableLost.__name__}: {found}"
    if not committed:
        return None
    catalog = existing_catalog(spec.table.catalog).name
    return (
        f"{TableLost.__name__}: a writer of this host committed to the table {spec.table.identifier}, and the catalog "
        f"{catalog!r} does not have it: the catalog was lost or exchanged, or the table was dropped or renamed. Name "
        f"the right catalog, or register the table's newest metadata file; `frazil forget {spec.name}` if it was "
        "dropped on purpose"
    )
