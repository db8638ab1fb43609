"""The tables of a stream's route: which table each route value has, how tasks write to the tables, and how new tables
are created.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.commit.followers import MAX_PARALLEL_COMMITS, Behind, require_marker
from frazil.commit.following import is_ahead, write_first_marker
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker, property_name, read_marker
from frazil.commit.members import Member, member_names, member_of, write_member
from frazil.commit.rules import check_fence
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folder
from frazil.commit.waiting_files import Note, all_files_wait, is_waiting_file, load_note, load_notes, write_note
from frazil.errors import AdoptionRequired, Fenced, RouteBehind, TableLost, error_text
from frazil.ingest.contract import Destinations, StageContext, Target, TargetTable
from frazil.ingest.schema_drift import SchemaDrift
from frazil.spec.model import StreamSpec
from frazil.spec.route import Route, may_have_made, value_property
from frazil.spec.units import counted
from frazil.stream.dropped_tables import dropped_sentence, is_of_others, still_has
from frazil.stream.evolve import Evolved, evolved, waiting_columns
from frazil.stream.stage_context import staged_target
from frazil.table.catalogs import catalog_errors, explain_table_error, load_catalog
from frazil.table.declared import table_identifier
from frazil.table.made_tables import route_value, routed_table, tables_named_like
from frazil.table.parallel import in_parallel
from frazil.table.renamed import copy_renames
from frazil.table.schema_update import evolve
from frazil.table.tables import ensure_declared, evolve_to_declaration

log = logging.getLogger(__name__)


def made_to_follow(spec: StreamSpec, tables: StreamTables, target: Target, journals: Sequence[Journal]) -> None:
    """Create a table for which rows of these batches wait next to the default table, and write its first marker.

    Then the waiting rows can be committed. Does not create a table that exists already.

    Raises RouteBehind for a table that existed before and was dropped, or that belongs to another owner. Raises
    AdoptionRequired for a table with batches that the default table does not have. Also raises the errors of the
    catalog and of `ensure_declared`.
    """
    catalog, default_marker, value = (
        load_catalog(spec.table.catalog),
        tables.marker(),
        _noted_value(spec, tables, target),
    )
    declared = routed_table(spec, target, value)
    with catalog_errors(catalog.name):
        try:
            table = catalog.load_table(target)
        except NoSuchTableError:
            _check_not_dropped(spec, tables, target)
            _check_never_there(tables, target, journals)
            table = ensure_declared(catalog, declared, spec.name)
        if is_of_others(spec, table, value):
            raise RouteBehind(
                f"table {target} exists, and was not made for these rows; if it is meant to have them, add it to "
                "route.tables"
            )
        _check_same(spec, tables, member_of(tables, target), table)
        table = evolve_to_declaration(copy_renames(table, tables.main.current()), declared, spec.name)
        if spec.evolution.mode != "off":
            staged = (file for journal in journals for file in journal.staged_for(target))
            files = [file for file in staged if is_waiting_file(tables, file)]
            widening = spec.evolution.mode == "full"
            evolve(table, spec, waiting_columns(tables.main.refresh(), files, widening=widening))
            table = catalog.load_table(target)
    write_member(tables, target, value, table)
    handle = tables.handle(target)
    handle.set_current(table)
    marker = read_marker(handle.current().properties, spec.name)
    if default_marker is None:
        raise Fenced(f"stream {spec.name!r} was forgotten while rows waited for {target}")
    if marker is None:
        _check_never_there(tables, target, journals)
        write_first_marker(tables, handle, default_marker, before=journals[0])
    elif is_ahead(marker, default_marker):
        raise AdoptionRequired(_ahead(spec, target, marker))


def is_in_the_place(spec: StreamSpec, tables: StreamTables, target: Target) -> bool:
    """Whether a foreign table has the name of a table that the template created or would create.

    Raises the catalog's errors.
    """
    properties = tables.handle(target).current().properties
    is_named = spec.route is not None and target in spec.route.tables.values()
    if is_named or property_name(spec.name) in properties:
        return False
    member = member_of(tables, target)
    value = member.value if member else _noted_value(spec, tables, target)
    own = properties.get(value_property(spec.name))
    return own is None or value not in {None, own}


def _noted_value(spec: StreamSpec, tables: StreamTables, target: Target) -> str | None:
    """Return the route value in the table's note. Returns None for a table that the route names, and without a note."""
    named = spec.route is not None and target in spec.route.tables.values()
    note = None if named else load_note(tables, target)
    return None if note is None else note.value


def _check_never_there(tables: StreamTables, target: Target, journals: Sequence[Journal]) -> None:
    if not all_files_wait(tables, journals, target):
        raise RouteBehind(f"table {target} was dropped, and files that it had wait to be committed to it")


def _check_not_dropped(spec: StreamSpec, tables: StreamTables, target: Target) -> None:
    """Raise TableLost if the route once had this missing table: a new table would not have its rows."""
    if (member := member_of(tables, target)) is not None:
        raise TableLost(dropped_sentence(spec, tables, member))


def _check_same(spec: StreamSpec, tables: StreamTables, member: Member | None, table: Table) -> None:
    """Raise TableLost if another table now has the name of a table that the route had."""
    if member is not None and member.is_another(table):
        raise TableLost(dropped_sentence(spec, tables, member, table))


def _ahead(spec: StreamSpec, target: Target, marker: Marker) -> str:
    return (
        f"table {target} has batch {marker.settled} of stream {spec.name!r}, and {spec.table.identifier} does not: "
        "it is another table than before, or the stream was forgotten. Records read again would be written to "
        f"{target} a second time. `frazil route {spec.name} --give-up {target}` lets it go on"
    )


def _full(limit: int) -> str:
    return (
        f"route.limit is {limit}, and the writer has made that many tables. Raise it, or give the value a table in "
        "route.tables; "
        "then replay its dead letters"
    )


@dataclass(slots=True)
class RoutedTables:
    """The tables of one stream's route, as known to the stream's writer.

    A table that cannot be loaded or created is in `absent`. Its rows wait next to the default table until it can be
    used again.
    """

    spec: StreamSpec
    route: Route
    catalog: Catalog
    tables: StreamTables
    behind: Mapping[Target, Behind] = field(default_factory=dict)
    """Routed tables that do not have all their rows yet, with the reasons."""
    targets: dict[str, Target] = field(default_factory=dict)
    """Maps each route value to its table."""
    refused: dict[str, str] = field(default_factory=dict)
    """Maps a route value that gets no table to the reason."""
    absent: dict[Target, str] = field(default_factory=dict)
    """Maps each table that could not be loaded or created to the reason."""
    _members: set[Target] = field(default_factory=set)
    """Tables that the route is known to have had."""
    _unread: set[Target] = field(default_factory=set)
    """Tables that the template may have created and that could not be loaded; their values are unknown."""
    _layouts: dict[Target, tuple[str, TargetTable]] = field(default_factory=dict)
    """Maps each table to its layout, and to the location of the metadata from which the layout was derived."""
    _texts: dict[str, str] = field(default_factory=dict)

    def open(self, default_marker: Marker) -> None:
        """Load the existing tables, and create those that are declared. An error of one table does not affect the
        others.

        Raises AdoptionRequired for a table with batches that the default table does not have. Errors of tables that
        commit atomically with the default table are raised too: RouteBehind if another table has the name while rows
        wait, and the errors of `ensure_declared`.
        """
        self._members |= member_names(self.tables)
        with catalog_errors(self.catalog.name):
            declared = sorted(set(self.route.tables.values()))
            self.targets.update(self.route.tables)
            self._in_parallel(
                lambda name: self._load_or_create(name, None, lambda: self._declared(name, default_marker)), declared
            )
            self._find_made(default_marker)
            self._keep_unread(default_marker)
            self.make([*self._values_of_missing(), *self._values_of_dropped()], default_marker)
        log.info("the route of stream %r has %s", self.spec.name, counted(len(set(self.targets.values())), "table"))

    @property
    def made(self) -> int:
        """Number of tables that the template has created, or may have created."""
        return len(self.targets.keys() - self.route.tables.keys()) + len(self._unread - set(self.targets.values()))

    def _values_of_missing(self) -> list[str]:
        """Return the route values whose tables earlier writers could not create.

        Leaves out values for which the route no longer makes a table. If rows wait for such a table, it is created when
        they are committed.
        """
        noted = [(note.value, note.target) for note in load_notes(self.tables)]
        return [value for value, target in noted if value is not None and self.route.makes(value, target)]

    def _keep_unread(self, default_marker: Marker) -> None:
        """Keep the existing tables that cannot be loaded, even if the route no longer allows their values.

        Rows for such a table wait for it. Otherwise they would be dead letters until a start can load the table.
        """
        names = sorted(self._unread & self._members)
        members = filter(None, in_parallel(lambda name: member_of(self.tables, name), names) if names else [])
        values = [m.value for m in members if m.value is not None and self.route.made_table(m.value) == m.target]
        self._in_parallel(lambda value: self._make(value, default_marker), [v for v in values if v not in self.targets])

    def _values_of_dropped(self) -> list[str]:
        """Return the route values of the template's tables that the catalog no longer has.

        Their rows wait for an operator's decision.
        """
        known = {*self.targets.values(), *self._unread}
        names = [n for n in sorted(self._members - known) if may_have_made(self.route, n)]
        found = (member_of(self.tables, name) for name in names)
        return [m.value for m in found if m is not None and m.value is not None and still_has(self.spec, m)]

    def _declared(self, identifier: Target, default_marker: Marker) -> None:
        self._follow(self._ensured(identifier, None), None, default_marker)

    def _ensured(self, identifier: Target, value: str | None) -> Table:
        """Return the table. Creates it if it never existed; raises TableLost if it was dropped."""
        table = self._loaded(identifier)
        if table is None:
            if identifier in self._members:
                _check_not_dropped(self.spec, self.tables, identifier)
            table = ensure_declared(self.catalog, routed_table(self.spec, identifier, value), self.spec.name)
        return table

    def _load_or_create(self, target: Target, value: str | None, act: Callable[[], None]) -> None:
        """Run `act`, which loads, creates or changes a table.

        If it fails, the table is added to `absent`, and each batch tries again; other tables are not affected. An error
        of a table that commits atomically with the default table is raised.
        """
        try:
            act()
        except (AdoptionRequired, Fenced):
            raise
        except Exception as error:  # catalogs' clients raise anything
            if self._in_one_step(target):
                raise
            reason = explain_table_error(error)
            if target not in self.absent:
                log.warning("table %s is not there: %s. Its rows wait next to the default table", target, reason)
            write_note(self.tables, Note(target, value, reason))
            self.absent[target] = reason
        else:
            if self.absent.pop(target, None):
                log.warning("table %s can be used again", target)

    def _in_one_step(self, target: Target) -> bool:
        atomic = self.spec.commit.atomic
        return atomic if isinstance(atomic, bool) else target in atomic

    def try_again(self, default_marker: Marker) -> None:
        """Try again to load or create the tables in `absent`.

        Leaves out tables for which rows wait: they are created when these rows are committed.
        """
        values = self._values()

        def again(target: Target) -> None:
            value = values.get(target)
            act = (
                (lambda: self._declared(target, default_marker))
                if value is None
                else (lambda: self._made(value, default_marker))
            )
            self._load_or_create(target, value, act)

        if names := [target for target in sorted(self.absent) if target not in self.behind]:
            with catalog_errors(self.catalog.name):
                self._in_parallel(again, names)

    def _values(self) -> dict[Target, str]:
        """Map each table that the template creates to its route value."""
        return {target: value for value, target in self.targets.items() if value not in self.route.tables}

    def _find_made(self, default_marker: Marker) -> None:
        """Load the tables that the template created, and add them to `targets`.

        A table property holds each table's route value.
        """

        def found(identifier: str) -> None:
            try:
                table = self._loaded(identifier)
            except Exception as error:  # catalogs' clients raise anything; its member record has the table's value
                log.warning("table %s cannot be loaded: %s", identifier, error_text(error))
                self._unread.add(identifier)
                return
            value = (
                None if table is None else route_value(table.properties, identifier, self.route, stream=self.spec.name)
            )
            if table is not None and value is not None and value not in self.targets:
                self.targets[value] = identifier
                self._load_or_create(identifier, value, lambda: self._follow(table, value, default_marker))

        self._in_parallel(found, tables_named_like(self.catalog, self.route))

    def make(self, values: Iterable[str], default_marker: Marker) -> None:
        """Create the tables of new route values, up to the route's limit. Raises the same errors as `open`."""
        new = sorted({value for value in values if value not in self.targets and value not in self.refused})
        new = new[: max(0, self.route.limit - self.made)]
        with catalog_errors(self.catalog.name):
            self._in_parallel(lambda value: self._make(value, default_marker), new)

    def _make(self, value: str, default_marker: Marker) -> None:
        identifier = self.route.made_table(value)
        self._load_or_create(identifier, value, lambda: self._made(value, default_marker))
        if identifier in self.absent:
            self.targets[value] = identifier

    def _made(self, value: str, default_marker: Marker) -> None:
        identifier = self.route.made_table(value)
        self._check_no_waiting_rows(identifier)
        table = self._ensured(identifier, value)
        if table.properties.get(value_property(self.spec.name)) != value:
            self.targets.pop(value, None)
            self.refused[value] = (
                f"{identifier} exists, and was not made for it; if it is meant to have these rows, add it to "
                "route.tables"
            )
            return
        self._follow(table, value, default_marker)
        self.targets[value] = identifier
        log.info("created table %s for the value %r", identifier, value)

    def _loaded(self, identifier: str) -> Table | None:
        try:
            return self.catalog.load_table(identifier)
        except NoSuchTableError:
            return None

    def _follow(self, table: Table, value: str | None, default_marker: Marker) -> None:
        """Evolve the table to the declaration, record it as a member of the route, and write its first marker if it has
        none.

        Done before any file is staged for the table. Raises TableLost, AdoptionRequired and RouteBehind.
        """
        identifier = table_identifier(table)
        member = member_of(self.tables, identifier) if identifier in self._members else None
        _check_same(self.spec, self.tables, member, table)
        table = copy_renames(table, self.tables.main.current())
        table = evolve_to_declaration(table, routed_table(self.spec, identifier, value), self.spec.name)
        if member is None or member.uuid is None:
            write_member(self.tables, identifier, value, table)
            self._members.add(identifier)
        handle = self.tables.handle(identifier)
        handle.set_current(table)
        marker = read_marker(handle.current().properties, self.spec.name)
        if marker is not None and is_ahead(marker, default_marker):
            # A replay may run while a writer does, which may have committed to the default table since.
            now = check_fence(self.tables.marker(), stream=self.spec.name, epoch=default_marker.at.epoch)
            if is_ahead(marker, now):
                raise AdoptionRequired(_ahead(self.spec, identifier, marker))
        if marker is not None:
            return
        self._check_no_waiting_rows(identifier)
        write_first_marker(self.tables, handle, default_marker)

    def _check_no_waiting_rows(self, identifier: str) -> None:
        """Raise RouteBehind if rows wait for a table that is about to get its first marker: they would be lost."""
        if identifier in self.behind:
            behind = self.behind[identifier]
            remedy = "Put the table back as it was" if behind.gone else "Fix that"
            raise RouteBehind(
                f"stream {self.spec.name!r}: {behind}. {remedy}, or let it go on without them: "
                f"`frazil route {self.spec.name} --give-up {identifier}`"
            )

    def _in_parallel(self, act: Callable[[str], None], names: list[str]) -> None:
        if names:
            with ThreadPoolExecutor(min(MAX_PARALLEL_COMMITS, len(names)), thread_name_prefix="route") as pool:
                for _ in pool.map(act, names):
                    pass

    def evolved(self, drift: Mapping[Target, Sequence[SchemaDrift]], main: Table) -> dict[Target, Evolved | None]:
        """Evolve routed tables by the schema drift of a batch. `main` is the default table.

        Returns the result for each table; None for a table that failed and was added to `absent`. Rows of such a table
        wait next to the default table, which gets their columns instead.
        """
        found = dict[Target, Evolved | None].fromkeys(drift)
        values = self._values()

        def change(target: Target) -> None:
            table = self.tables.handle(target).refresh()
            # A table without this stream's marker must not change.
            require_marker(read_marker(table.properties, self.spec.name), table, self.spec.name)
            found[target] = evolved(table, self.spec, drift[target], main=main)

        self._in_parallel(
            lambda target: self._load_or_create(target, values.get(target), lambda: change(target)), sorted(drift)
        )
        return found

    def placed(self, context: StageContext, key: BatchKey) -> StageContext:
        """Return the batch's staging context with the known routed tables added. Loads only tables whose last commit
        failed.

        Rows of tables in `absent` are written next to the default table, in its format. Raises the catalog's errors for
        a table that commits atomically with the default table.
        """
        limit = self.route.limit
        destinations = Destinations(
            by=self.route.by,
            name=self.route.name or "",
            targets=dict(self.targets),
            to_main=self.route.otherwise == "table",
            makes=self.route.template is not None,
            allow=self.route.allow,
            refused=dict(self.refused),
            full=_full(limit) if self.made >= limit else "",
        )
        waits = dataclasses.replace(context.main, folder=self.tables.waiting_folder(key))
        values = self._values()
        routed = {
            target: waits if target in self.absent else self._placed(target, values.get(target), key) or waits
            for target in sorted(set(self.targets.values()))
        }
        return dataclasses.replace(context, targets={**context.targets, **routed}, destinations=destinations)

    def _placed(self, target: Target, value: str | None, key: BatchKey) -> TargetTable | None:
        """Return the layout in which tasks write to a table.

        Loads the table if its last commit failed. Returns None if that fails too, so that the table is now in `absent`.
        """
        found = list[TargetTable]()
        self._load_or_create(target, value, lambda: found.append(self._target(target, key)))
        return found[0] if found else None

    def _target(self, target: Target, key: BatchKey) -> TargetTable:
        table = self.tables.handle(target).current()
        folder = batch_folder(table, self.tables.stream, key)
        location, layout = self._layouts.get(target, ("", None))
        if layout is None or location != table.metadata_location:
            layout = staged_target(self.spec, table, folder)
            # Equal texts share one object, so that they are sent to the tasks only once.
            layout = dataclasses.replace(
                layout,
                schema_json=self._one(layout.schema_json),
                spec_json=self._one(layout.spec_json),
                sort_order_json=self._one(layout.sort_order_json),
            )
            self._layouts[target] = (table.metadata_location, layout)
        return dataclasses.replace(layout, folder=folder)

    def _one(self, text: str) -> str:
        return self._texts.setdefault(text, text)
