"""`frazil health`: shows statistics of tables, and values that exceed alert thresholds now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path

import click

from frazil import clock
from frazil.cli.options import json_option, streams_option, table_argument
from frazil.cli.output import (
    MAX_SUBJECTS,
    REMEDY_INDENT,
    echo,
    echo_fields,
    echo_json,
    echo_lines,
    echo_table,
    group_messages,
    is_terminal_narrow,
)
from frazil.commit.marker import property_name
from frazil.errors import Failure, FrazilError, SpecError, TableLost, explain
from frazil.host.supervision import start_hint
from frazil.maintenance.alerts import Reading, evaluate_table_rules
from frazil.maintenance.health import PartitionFiles, RecentFiles, StreamHealth, TableHealth
from frazil.maintenance.measure import LagQuery, NotMadeByRoute, find_template_tables, measure
from frazil.maintenance.stream_rules import evaluate_stream_rules, read_window_rules
from frazil.maintenance.tables import (
    MaintainedTable,
    TableKind,
    find_maintained,
    maintained_tables,
    routes_by_name,
    template_table,
)
from frazil.spec.last_valid import STREAMS, find_declared, find_declared_streams
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import list_windowed_views
from frazil.spec.units import format_count, format_rounded_bytes, shorten_list
from frazil.status.fixes import Service, explain_error
from frazil.status.state import StreamState
from frazil.status.stream import read_stream_state
from frazil.status.table import describe_missing_tables
from frazil.table.catalogs import call_catalog, keep_catalogs, open_existing_catalog
from frazil.table.lost_tables import lost_dead_letters_error
from frazil.table.parallel import run_in_parallel
from frazil.table.tables import load_stream_table
from frazil.table.unresponsive import Unresponsive
from frazil.timetext import format_elapsed, format_utc

MAX_ROWS = 20
"""Maximum number of partitions, or of tables of routes, that are listed."""
COLUMNS = ("table", "files", "average", "manifests", "list/file", "metadata", "snapshots", "compacted", "state")
WIDE_COLUMNS = frozenset({"manifests", "metadata", "snapshots", "compacted"})


@dataclass(frozen=True, slots=True)
class TableReport:
    """The result for one table. `health` is None if it does not exist yet, or cannot be measured (see `problem`)."""

    table: str
    kind: TableKind
    health: TableHealth | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    beyond: tuple[Reading, ...] = ()
    """Values that exceed the thresholds of their alerts now, even if the alerts have not fired yet."""
    problem: Failure | None = None
    missing: bool = False
    """Whether the catalog has lost the table, although its stream once had it or rows wait for it."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    state: StreamState
    beyond: tuple[Reading, ...]


@click.command()
@table_argument(required=False)
@streams_option
@json_option
@click.option("--deep", is_flag=True, help="Also read the manifests, and show files by partition.")
@keep_catalogs()
def health(table: str | None, streams_folder: Path, *, as_json: bool, deep: bool) -> None:
    """Show the size and layout of tables, and what is wrong with streams.

    Without TABLE, prints a line for each table that streams write, and for the first 20 tables of routes, those with
    findings first; --json has all. With TABLE, prints all of its numbers. Reads metadata and commit records, and with
    TABLE the lag from Kafka if no writer reports it. It reads manifests only with --deep, and never reads data or
    starts a JVM.

    Exits with 0 even if a value is beyond its threshold. Exits with 25 if a stream's table is missing from its catalog,
    with 10 if a declaration cannot be read, and with 1 if a table cannot be measured. With TABLE, only the declarations
    of its streams count.

    \b
    Example:
      frazil health demo.flights --deep
    """
    now_ms, catalogs = clock.now_ms(), Unresponsive()
    specs, errors = find_declared_streams(streams_folder, now_ms=now_ms)
    declared = find_declared(streams_folder, STREAMS, now_ms=now_ms)
    broken = {stream.spec.name for stream in declared if stream.spec and stream.problem}
    if table is not None:
        maintained = find_maintained(specs, table, problems=errors)
        step = partial(_measure_table, maintained, now_ms=now_ms, deep=deep, lag_query=LagQuery.ALWAYS)
        report = call_catalog(maintained.catalog, step, catalogs, is_long=True)
        measured = [(maintained, report)]
        is_known = report.health is not None
        reports, unknown = ([report], {}) if is_known else _add_missing_tables(measured, maintained.streams, catalogs)
        shown_reports = reports[:1]
        if unknown and not shown_reports[0].missing:
            raise next(iter(unknown.values()))
    else:
        routed, unlisted = _find_routed_tables(specs, catalogs)
        tables = sorted([*maintained_tables(specs), *routed], key=lambda each: each.name)
        results = run_in_parallel(partial(_report_if_possible, catalogs, now_ms=now_ms, deep=deep), tables)
        measured = [(each, report) for each, report in zip(tables, results, strict=True) if report is not None]
        reports, unknown = _add_missing_tables(measured, specs, catalogs)
        unlisted += [_unreadable_report(name, TableKind.ROUTED, error) for name, error in unknown.items()]
        shown_reports = [*reports, *{report.table: report for report in unlisted}.values()]
    if table is not None:
        specs = [spec for spec in maintained.streams if spec.table.identifier == maintained.identifier]
    running = run_in_parallel(partial(_read_stream, catalogs, now_ms=now_ms), specs)
    if as_json:
        echo_json({"at-ms": now_ms, "tables": shown_reports, "streams": running, "errors": errors})
    else:
        _print_tables(shown_reports, _rules_by_table(running), in_full=table is not None)
        problems = {report.table: str(report.problem) for report in shown_reports if report.problem}
        for state, reading in ((stream.state, reading) for stream in running for reading in stream.beyond):
            printed = [*problems.values(), *([str(state.unread)] if state.unread and state.table in problems else [])]
            echo_lines([] if any(problem in reading.sentence for problem in printed) else [reading.sentence])
    for error in () if as_json else errors:
        echo(error, err=True)
    if errors and (table is None or any(spec.name in broken for spec in maintained.streams)):
        raise SystemExit(SpecError.exit_code)
    if any(report.missing for report in shown_reports) or any(stream.state.missing for stream in running):
        raise SystemExit(TableLost.exit_code)
    for reason in unknown.values():
        raise SystemExit(reason.exit_code if isinstance(reason, FrazilError) else FrazilError.exit_code)
    if any(report.problem for report in shown_reports):
        raise SystemExit(FrazilError.exit_code)


def _add_missing_tables(
    measured: Sequence[tuple[MaintainedTable, TableReport]], specs: Sequence[StreamSpec], catalogs: Unresponsive
) -> tuple[list[TableReport], dict[str, Exception]]:
    def find_missing(spec: StreamSpec) -> dict[str, Failure] | Exception:
        try:
            return call_catalog(spec.table.catalog, lambda: describe_missing_tables(spec), catalogs, is_long=True)
        except Exception as error:  # catalogs and storage raise what their clients raise
            return error

    absent = {(table.catalog, table.identifier) for table, report in measured if report.health is None}
    by_table = [((spec.table.catalog, spec.table.identifier), spec) for spec in specs]
    checked = [spec for table, spec in by_table if spec.sinks.has_routed_tables or table in absent]
    answers = [*zip(checked, run_in_parallel(find_missing, checked), strict=True)]
    missing_tables = {
        (spec.table.catalog, name): (spec, problem)
        for spec, missing in answers
        if not isinstance(missing, Exception)
        for name, problem in missing.items()
    }
    reports = []
    for table, report in measured:
        _, problem = missing_tables.pop((table.catalog, table.identifier), (None, None))
        if not (problem or report.problem or report.health) and table.kind is TableKind.DEAD_LETTERS:
            problem = _dropped_dead_letters_reason(table)
        reports.append(replace(report, problem=problem, missing=True) if problem and not report.health else report)
    for (_, name), (spec, problem) in sorted(missing_tables.items(), key=lambda item: (item[0][0] or "", item[0][1])):
        table_name = template_table(spec, name, specs).name
        reports.append(TableReport(table_name, TableKind.ROUTED, problem=problem, missing=True))
    failed = {(table.catalog, table.identifier) for table, report in measured if report.problem}
    unknown = {
        f"route of {spec.name}": error
        for spec, error in answers
        if isinstance(error, Exception) and (spec.table.catalog, spec.table.identifier) not in failed
    }
    return reports, unknown


def _dropped_dead_letters_reason(table: MaintainedTable) -> Failure | None:
    """Return None if no stream of the table has started, or if the reason cannot be determined."""
    try:
        for spec in table.streams:
            main = load_stream_table(spec)
            if main is not None and property_name(spec.name) in main.properties:
                return explain(lost_dead_letters_error(spec, start_hint))
    except Exception:  # as above
        return None
    return None


def _measure_table(
    maintained: MaintainedTable, *, now_ms: int, deep: bool, lag_query: LagQuery = LagQuery.NEVER
) -> TableReport:
    catalog = open_existing_catalog(maintained.catalog)
    health = measure(catalog, maintained, now_ms=now_ms, deep=deep, lag_query=lag_query)
    if health is None:
        return TableReport(maintained.name, maintained.kind)
    ratios = {
        "average-file-bytes": health.average_file_bytes,
        "manifest-list-bytes-per-file": health.manifest_list_bytes_per_file,
        "manifests-per-file": health.manifests_per_file,
        "delete-files-per-file": health.delete_files_per_file,
        "deleted-percent": health.deleted_percent,
    }
    readings = [*evaluate_table_rules(health, maintained.settings, now_ms=now_ms)]
    views = (view for spec in maintained.streams for view in list_windowed_views(spec))
    if feeds := [view for view in views if view.table.identifier == maintained.identifier and view.window]:
        readings += read_window_rules(maintained.identifier, feeds, now_ms=now_ms)
    return TableReport(maintained.name, maintained.kind, health, ratios, tuple(r for r in readings if r.is_beyond))


def _find_routed_tables(
    specs: Sequence[StreamSpec], catalogs: Unresponsive
) -> tuple[list[MaintainedTable], list[TableReport]]:
    tables: list[MaintainedTable] = []
    unlisted: list[TableReport] = []
    for name, spec in routes_by_name(specs).items():
        try:
            step = partial(_load_routed_tables, spec, specs)
            tables += call_catalog(spec.table.catalog, step, catalogs, is_long=True)
        except Exception as error:  # catalogs and storage raise anything; continue with the other tables
            unlisted.append(_unreadable_report(name, TableKind.ROUTED, error))
    return tables, unlisted


def _load_routed_tables(spec: StreamSpec, specs: Sequence[StreamSpec]) -> list[MaintainedTable]:
    return find_template_tables(open_existing_catalog(spec.table.catalog), spec, specs)


def _unreadable_report(table: str, kind: TableKind, error: Exception) -> TableReport:
    return TableReport(table, kind, problem=explain_error(Service.TABLE, error, "the table cannot be read"))


def _report_if_possible(
    catalogs: Unresponsive, maintained: MaintainedTable, *, now_ms: int, deep: bool
) -> TableReport | None:
    try:
        step = partial(_measure_table, maintained, now_ms=now_ms, deep=deep)
        return call_catalog(maintained.catalog, step, catalogs, is_long=True)
    except NotMadeByRoute:
        return None
    except Exception as error:  # catalogs and storage raise what their clients raise; continue with the other tables
        return _unreadable_report(maintained.name, maintained.kind, error)


def _read_stream(catalogs: Unresponsive, spec: StreamSpec, *, now_ms: int) -> StreamReport:
    state = read_stream_state(spec, now_ms=now_ms, in_full=False, catalogs=catalogs)
    values = evaluate_stream_rules(state, spec.maintenance.alerts, now_ms=now_ms)
    return StreamReport(state, tuple(reading for reading in values if reading.is_beyond))


def _rules_by_table(running: Sequence[StreamReport]) -> dict[str, list[str]]:
    rules: dict[str, list[str]] = {}
    for stream in running:
        rules.setdefault(stream.state.table, []).extend(f"{r.rule}:{stream.state.name}" for r in stream.beyond)
    return rules


def _print_tables(reports: Sequence[TableReport], stream_rules: Mapping[str, Sequence[str]], *, in_full: bool) -> None:
    if in_full:
        for report in reports:
            absent = {"table": report.table, "state": _state_text(report)}
            echo_fields(_health_fields(report.health) if report.health else absent)
            if report.health and report.health.partitions is not None:
                _print_partitions(report.health.partitions)
    else:
        columns = [name for name in COLUMNS if not (name in WIDE_COLUMNS and is_terminal_narrow())]
        routed = [report for report in reports if report.kind is TableKind.ROUTED]
        hidden = {table.table for table in sorted(routed, key=lambda table: _state_text(table) == "ok")[MAX_ROWS:]}
        listed = (table for table in reports if table.table not in hidden)
        rows = [_table_row(report, stream_rules.get(report.table, ())) for report in listed]
        cells = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        echo_table(columns, [tuple(row[name] for name in columns) for row in cells], numbers=frozenset(COLUMNS[1:7]))
        if hidden:
            echo(f"and {format_count(len(hidden), 'more table')} of routes; --json has all")
    echo_lines(group_messages((table.table, table.problem) for table in reports if table.problem))
    echo_lines(_group_readings(reports))


def _group_readings(reports: Sequence[TableReport]) -> list[str]:
    """Return a sentence for each reading. Many readings of one rule share a sentence: the worst table's."""
    by_rule: dict[str, list[tuple[float, str, str]]] = {}
    for report in reports:
        for reading in report.beyond:
            by_rule.setdefault(reading.rule, []).append((reading.value or 0, report.table, reading.sentence))
    lines = []
    for rule, readings in by_rule.items():
        max_shown = len(readings)
        if max_shown > MAX_SUBJECTS:
            max_shown = 1
            readings.sort(key=itemgetter(0), reverse=True)
        lines += [sentence for _, _, sentence in readings[:max_shown]]
        if hidden := [table for _, table, _ in readings[max_shown:]]:
            names = ", ".join(shorten_list(hidden, MAX_SUBJECTS, "table"))
            lines.append(f"{REMEDY_INDENT}{rule}: the same for {format_count(len(hidden), 'other table')}: {names}")
    return lines


def _table_row(report: TableReport, stream_rules: Sequence[str]) -> tuple[str, ...]:
    health = report.health
    if health is None:
        return (report.table, *[""] * 7, _state_text(report, stream_rules))
    return (
        report.table,
        f"{health.data_files:,}",
        format_rounded_bytes(health.average_file_bytes),
        f"{health.manifests:,}",
        format_rounded_bytes(health.manifest_list_bytes_per_file),
        format_rounded_bytes(health.metadata_bytes),
        f"{health.snapshots:,}",
        _compacted_text(health),
        _state_text(report, stream_rules),
    )


def _state_text(report: TableReport, stream_rules: Sequence[str] = ()) -> str:
    if report.health is None:
        state = "missing" if report.missing else "unknown" if report.problem else "no table yet"
        return ", ".join([state, *stream_rules])
    return ", ".join([*(r.rule for r in report.beyond), *stream_rules]) or "ok"


def _health_fields(health: TableHealth) -> dict[str, str]:
    target, average = format_rounded_bytes(health.target_file_bytes), format_rounded_bytes(health.average_file_bytes)
    per_file = format_rounded_bytes(health.manifest_list_bytes_per_file)
    bytes_since = format_rounded_bytes(health.bytes_since_compaction)
    added = f"{format_count(health.files_since_compaction, 'file')} of {bytes_since}"
    never = f"never in its history; not compacted: {added}"
    last_fold = _format_age(health.last_fold_at_ms, health.at_ms)
    folded = f"{format_count(health.folds, 'time')} by writers in its history, last {last_fold}"
    return {
        "table": health.table,
        **({"format version": str(health.format_version)} if health.format_version > 2 else {}),
        "snapshot": "none" if health.snapshot_id is None else str(health.snapshot_id),
        "data files": f"{health.data_files:,}, {average} on average (target {target})",
        "data": f"{format_rounded_bytes(health.data_bytes)}, {format_count(health.rows, 'row')}",
        "recent files": _recent_files_text(health.recent),
        "delete files": f"{health.delete_files:,} ({health.delete_files_per_file:.2f} per data file)",
        "deleted rows": f"{health.deleted_rows:,} still in data files, {health.deleted_percent:.1f} % of their rows",
        "manifests": f"{health.manifests:,} ({health.manifests_per_file:.3f} per data file), "
        f"{format_rounded_bytes(health.manifests_bytes)}",
        "manifest list": f"{format_rounded_bytes(health.manifest_list_bytes)} ({per_file} per data file)",
        "metadata.json": format_rounded_bytes(health.metadata_bytes),
        "snapshots": f"{health.snapshots:,}, the oldest from {format_utc(health.oldest_snapshot_at_ms)}",
        "compacted": never if health.last_compaction_at_ms is None else f"{_compacted_text(health)}, {added} since",
        **({"folded": folded} if health.folds else {}),
        **{
            f"stream {s.name}": f"lag {_lag_text(s)}, last commit "
            f"{_format_age(s.last_commit_at_ms, health.at_ms)}, watermark {format_utc(s.watermark_ms)}"
            for s in health.streams
        },
    }


def _lag_text(stream: StreamHealth) -> str:
    if stream.lag is not None:
        return f"{stream.lag:,}"
    return f"unknown ({stream.lag_problem.rstrip('.')})" if stream.lag_problem else "unknown"


def _recent_files_text(recent: RecentFiles | None) -> str:
    if recent is None:
        return "unknown"
    return (
        f"{recent.files:,} from the last {format_count(recent.commits, 'commit')}, "
        f"{recent.files_per_partition:.1f} per partition and commit; the smallest 10 % have at most "
        f"{format_rounded_bytes(recent.p10_bytes)}"
    )


def _print_partitions(partitions: Sequence[PartitionFiles]) -> None:
    files = sum(p.files for p in partitions)
    each = files / max(len(partitions), 1)
    echo(f"{format_count(files, 'data file')} in {format_count(len(partitions), 'partition')}, {each:.1f} each")
    if deletes := sum(p.delete_files for p in partitions):
        size, rows = (sum(getattr(p.deletes, name) for p in partitions) for name in ("bytes", "rows"))
        dangling = sum(len(p.deletes.dangling) for p in partitions)
        echo(
            f"{format_count(deletes, 'delete file')} of {format_rounded_bytes(size)} with {format_count(rows, 'row')}; "
            f"{dangling:,} of them refer to data files that no longer exist"
        )
    worst = sorted(partitions, key=lambda p: (-p.small_files, -p.deletes.due_files, -p.delete_files, p.path))
    columns = ("partition", "files", "small", "bytes", "small bytes", "p10", "delete files", "deleted rows", "ended at")
    rows = [
        (
            p.path or "(all)",
            f"{p.files:,}",
            f"{p.small_files:,}",
            format_rounded_bytes(p.bytes),
            format_rounded_bytes(p.small_bytes),
            format_rounded_bytes(p.p10_bytes),
            f"{p.delete_files:,}",
            f"{p.deletes.rows:,}",
            "" if p.window_end_us is None else format_utc(p.window_end_us // 1000),
        )
        for p in worst[:MAX_ROWS]
    ]
    echo_table(columns, rows, numbers=frozenset(columns[1:8]))
    if len(worst) > MAX_ROWS:
        hidden = format_count(len(worst) - MAX_ROWS, "partition")
        echo(f"and {hidden} more, with fewer small files; --json has all")


def _compacted_text(health: TableHealth) -> str:
    return "never" if health.last_compaction_at_ms is None else _format_age(health.last_compaction_at_ms, health.at_ms)


def _format_age(ms: int | None, now_ms: int) -> str:
    return "unknown" if ms is None else f"{format_elapsed(now_ms - ms)} ago"
