"""`frazil evolve`: renames and drops columns of a stream's table while its writer runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from pyiceberg.table import Table

from frazil.cli.options import stream_options, yes_option
from frazil.cli.output import CommandOutput, ask
from frazil.commit.open_streams import open_read_only
from frazil.errors import SpecError
from frazil.spec.column import RESERVED_COLUMNS
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.spec.reading_rules import FORMATS_WITH_FIELD_NAMES
from frazil.spec.units import format_count
from frazil.table.declared_tables import load_route_tables
from frazil.table.renamed_columns import ColumnChanges, change_columns, check_changes, layout_field_ids


class RenameParam(click.ParamType[tuple[str, str]]):
    name = "old=new"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        old, equals, new = str(value).partition("=")
        if not (old and equals and new):
            self.fail(f"{value!r} is not of the form old=new", param, ctx)
        return old, new


@click.command()
@stream_options
@click.option("--rename", "renames", type=RenameParam(), multiple=True, help="A column's old and new name: `a=b`.")
@click.option("--drop", "drops", multiple=True, help="A column to drop.")
@yes_option
def evolve(  # noqa: PLR0913 - one for each option
    stream: str,
    streams_folder: Path,
    *,
    renames: Sequence[tuple[str, str]],
    drops: Sequence[str],
    yes: bool,
    as_json: bool,
) -> None:
    """Rename or drop columns of STREAM's table, by field id, while its writer runs. With a route, in all its tables.

    A renamed column keeps its values. From then on, records may use either name, and the declaration may keep the old
    name until someone edits it. A dropped column's values are no longer read, and record fields with its name are
    ignored. No data file changes: a running writer applies the change from its next batch, without a restart.

    \b
    Example:
      frazil evolve flights --rename dep_delay=departure_delay
      frazil evolve flights --drop tailnum
    """
    wanted, output = ColumnChanges(dict(renames), drops), CommandOutput(as_json)
    if not wanted:
        raise click.UsageError("give --rename or --drop")
    spec = find_stream(streams_folder, stream)
    if spec.source.format.type not in FORMATS_WITH_FIELD_NAMES:
        raise SpecError(
            f"records of source.format {spec.source.format.type} have no field names, so columns cannot be changed "
            "while the writer runs. Stop the writer, change the column with a query engine, and edit the declaration",
            stream=stream,
        )
    table = open_read_only(spec).tables.main.current()
    routed = load_route_tables(table.catalog, spec.sinks)
    where = spec.table.identifier + (f" and {format_count(len(routed), 'table')} of its route" if routed else "")
    if wanted.drops:
        output.say(f"Readers of {where} will no longer see: {', '.join(wanted.drops)}.")
    steps = [f"rename {old} to {new}" for old, new in wanted.renames.items()]
    steps += [f"drop {name}" for name in wanted.drops]
    ask(f"Change columns of {where}: {', '.join(steps)}?", yes=yes)
    fixed = {name: reason for each in (*routed.values(), table) for name, reason in _fixed_columns(spec, each).items()}
    tables = (table, *routed.values())
    columns = [{field.name for field in each.schema().fields} for each in tables]
    columns[0] |= {*wanted.renames, *wanted.drops}.difference(*columns)  # so that names that no table has are refused
    changes = [(each, change) for each, names in zip(tables, columns, strict=True) if (change := wanted.of(names))]
    for each, change in changes:
        check_changes(each, change, fixed=fixed)
    for each, change in changes:  # if one fails, the writer's next start changes it
        change_columns(each, change, fixed=fixed)
    for old, new in wanted.renames.items():
        output.say(f"Column {old} is now {new}; records may use either name.")
    for name in wanted.drops:
        output.say(f"Column {name} is dropped; records' fields of that name are ignored.")
    declared = {column.name for column in spec.columns}
    edits = [f"rename {old} to {new}" for old, new in wanted.renames.items() if old in declared]
    edits += [f"remove {name}" for name in wanted.drops if name in declared]
    if edits:
        output.say(f"Then edit the declaration of {stream}, at any time: {', '.join(edits)}.")
    output.end(stream=stream, table=spec.table.identifier, renamed=wanted.renames, dropped=wanted.drops)


def _fixed_columns(spec: StreamSpec, table: Table) -> dict[str, str]:
    layout = layout_field_ids(table)
    names = (field.name for field in table.schema().fields if field.field_id in layout)
    fixed = dict.fromkeys(names, "the table is partitioned or sorted by it")
    fixed |= dict.fromkeys(spec.key_header_columns, "a record's key or header fills the column by its name")
    fixed |= dict.fromkeys(RESERVED_COLUMNS, "frazil fills the column by its name")
    if field := spec.sinks.field:
        fixed[field] = "the route reads the column by its name"
    reason = "it is the event time, and signals and gates read the column by its name"
    return fixed | {spec.event_time.column: reason}
