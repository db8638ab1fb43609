"""Counts a routed stream's rows in its default table and its routed tables.

Commit records show where rows were written, so tables that the route had earlier are audited, too. Rows that wait for a
table are counted in the waiting files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.audit.claims import Claims, claimed_offsets, merge_ranges
from frazil.audit.compare import format_at_offsets
from frazil.audit.evidence import Evidence
from frazil.audit.findings import Finding, FindingKind
from frazil.commit.backfill_records import (
    BackfillMarker,
    committed_chunks,
    is_last_backfill,
    list_given_up_targets,
    published_records,
    unsettled_backfill,
)
from frazil.commit.followers import Followers, missing_journals
from frazil.commit.journal import Journal
from frazil.commit.marker import Marker, property_name
from frazil.commit.routed_table_records import (
    RoutedTableRecord,
    find_renamed_table,
    journals_never_committed,
    newest_remaining_metadata,
    read_table_record,
)
from frazil.commit.stream_tables import StreamTables
from frazil.commit.waiting_files import all_files_wait, has_waiting_files, is_waiting_file
from frazil.ingest.contract import StagedFile, Target
from frazil.offsets.spans import OffsetSets, TopicPartition, offset_bitmap
from frazil.offsets.tally import OffsetTally, Tallies, get_offsets, merge_tallies, seen_offsets
from frazil.spec.units import format_count
from frazil.table.landed_offsets import COORDINATES, OffsetRanges, RowSelection, tally_files, tally_rows
from frazil.table.lost_tables import registration_command
from frazil.table.parallel import run_in_parallel

MAX_JOINED_PARTITIONS = 3
"""Maximum number of topic-partitions that the finding of a table lists. With more, each has its own finding."""
MAX_READ_ATTEMPTS = 3
"""Maximum number of attempts to read a table whose waiting rows are being committed."""


@dataclass(frozen=True, slots=True)
class RoutedRows:
    target: Target
    rows: Tallies
    """Rows in the table, or waiting for it. Rows of a renamed table count under its new name."""
    waiting: int = 0
    problem: str | None = None
    """Why the table, or a file of waiting rows, could not be read."""
    renamed: Target | None = None
    table: Table | None = None
    """The stream's table, by its current name."""


@dataclass(frozen=True, slots=True)
class PublishedReplays:
    """Published replays of dead letters. The original batches' ranges include their offsets."""

    rows: OffsetSets = field(default_factory=dict)
    routed: Mapping[Target, OffsetSets] = field(default_factory=dict)
    """Rows in each routed table."""
    last: BackfillMarker | None = None
    """The last replay, unless the dead-letter table no longer has its dead letters."""
    journals: Sequence[Journal] = ()
    given_up: Set[Target] = frozenset()
    """Tables for which an operator discarded the rows of the last replay."""

    @classmethod
    def load(cls, tables: StreamTables, default_table: Table) -> PublishedReplays:
        rows: dict[TopicPartition, BitMap64] = defaultdict(BitMap64)
        routed: dict[Target, dict[TopicPartition, BitMap64]] = defaultdict(lambda: defaultdict(BitMap64))
        for record in published_records(tables.journals, default_table.metadata, tables.stream):
            for found, added in ((rows, record.replayed), *((routed[t], added) for t, added in record.routed.items())):
                for tp, offsets in added.items():
                    found[tp] |= offsets
        last = unsettled_backfill(default_table.properties, tables.dead_letters.refresh().properties, tables.stream)
        if last is None:
            return cls(rows, routed)
        given_up = list_given_up_targets(tables.journals, last.id)
        return cls(rows, routed, last, committed_chunks(tables.journals, last), given_up)

    def find_waiting_files(self, properties: Mapping[str, str], target: Target) -> list[StagedFile]:
        """Return the replay's files for a routed table; empty if its `properties` show that it has the rows."""
        if self.last is None or target in self.given_up or is_last_backfill(properties, self.last):
            return []
        return [file for journal in self.journals for file in journal.staged_for(target)]


def read_routed_rows(  # noqa: PLR0913 - each source is an argument
    tables: StreamTables,
    marker: Marker,
    claimed: Claims,
    *,
    within: OffsetRanges | None,
    replays: PublishedReplays,
    candidate_names: Collection[Target] = (),
) -> tuple[RoutedRows, ...]:
    """Read the rows of the routed tables that commit records name. `candidate_names` are possible new names."""
    targets = sorted(claimed.routed.keys() | {t for t, each in replays.routed.items() if _count_claimed(each, claimed)})
    if not targets:
        return ()
    waiting = Followers.load(tables, marker).waiting
    if within is None:  # rows of a former topic may be past the marker
        ends = {tp: max((r.end for r in parts), default=0) for tp, parts in claimed.ranges.items()}
        within = {
            tp: ((0, max(ends.get(tp, 0), marker.offsets.get(tp, 0))),) for tp in ends.keys() | marker.offsets.keys()
        }
    step = partial(_read_with_retries, _RowSearch(tables, waiting, within, replays, candidate_names))
    first_reads = run_in_parallel(step, targets)
    renamed = sorted({entry.renamed for entry in first_reads if entry.renamed} - {*targets})
    return (*first_reads, *(run_in_parallel(step, renamed) if renamed else ()))


@dataclass(frozen=True, slots=True)
class _RowSearch:
    tables: StreamTables
    waiting: Mapping[Target, Sequence[Journal]]
    within: OffsetRanges
    replays: PublishedReplays
    candidate_names: Collection[Target]


def _read_with_retries(search: _RowSearch, target: Target) -> RoutedRows:
    """Read a table. Reads it again if a waiting file has disappeared, because its rows were committed."""
    waiting = search.waiting.get(target, ())
    for _ in range(MAX_READ_ATTEMPTS):
        rows = _read_rows(search, waiting, target)
        if not (rows.problem and (search.replays.last or has_waiting_files(search.tables, waiting, target))):
            break
    return rows


def _read_rows(search: _RowSearch, waiting: Sequence[Journal], target: Target) -> RoutedRows:
    tables, within = search.tables, search.within
    problem, renamed_to, default_io = None, None, tables.main.current().io
    tallies = defaultdict[TopicPartition, OffsetTally](OffsetTally)
    table: Table | None = None
    try:
        table = tables.handle(target).refresh()
    except NoSuchTableError:
        record = read_table_record(tables, target)
        renamed_to = None if record is None else find_renamed_table(tables, record, search.candidate_names)
        if renamed_to is not None:
            table = tables.handle(renamed_to).current()
        elif record or not waiting or not all_files_wait(tables, waiting, target):
            problem = _missing_table_message(tables, target, record)
    else:
        renamed_to = _find_new_name(search, target, table)
        if renamed_to is not None:  # the renamed table has all rows that are counted for the old name
            table = tables.handle(renamed_to).current()
        elif columns := [name for name in COORDINATES if name not in table.schema().column_names]:
            problem = f"another table has this name: it does not have {', '.join(columns)}"
        else:
            tallies.update(tally_rows(table, RowSelection({topic for topic, _ in within}, within)))
    if table is None:  # also read rows that wait in the table's own folder: they are not lost with the table
        missing, io, properties = journals_never_committed(tables, target, waiting), default_io, dict[str, str]()
    else:
        missing, io, properties = missing_journals(tables, table, waiting), table.io, dict(table.properties)
    waits = 0
    files = [
        (file, default_io if is_waiting_file(tables, file) else io)
        for journal in missing
        for file in journal.staged_for(target)
    ]
    files += [(file, default_io) for file in search.replays.find_waiting_files(properties, target)]
    for file, from_io in files:
        try:
            for tp, tally in tally_files(from_io, [file.path], within).items():
                tallies[tp].merge(tally)
                waits += tally.rows
        except FileNotFoundError:
            problem = problem or f"a file whose rows wait for the table is missing: {file.path}"
    return RoutedRows(target, dict(tallies), waits, problem, renamed_to, None if problem else table)


def _find_new_name(search: _RowSearch, target: Target, table: Table) -> Target | None:
    if property_name(search.tables.stream) in table.properties:
        return None
    record = read_table_record(search.tables, target)
    if record is None or not record.is_other_table(table):
        return None
    return find_renamed_table(search.tables, record, search.candidate_names)


def _missing_table_message(tables: StreamTables, target: Target, record: RoutedTableRecord | None) -> str:
    catalog, newest = tables.main.catalog_name, None if record is None else newest_remaining_metadata(tables, record)
    command = "" if newest is None else f": `{registration_command(catalog, target, newest.path)}`"
    return (
        f"the table is not in the catalog {catalog!r}: it was dropped or renamed. If the route still declares this "
        f"name, `frazil route {tables.stream}` shows the remedy. If not, rename the table back, declare its new name "
        f"in route.tables, or register it again{command}"
    )


def report_unread_rows(routed: Sequence[RoutedRows]) -> Iterator[Finding]:
    for entry in routed:
        if entry.problem:
            yield Finding(FindingKind.MISSING, 1, entry.problem, entry.target)
        if entry.waiting:
            rows = format_count(entry.waiting, "row", "is|are")
            sentence = f"{rows} not yet committed to the table. If this persists, `frazil route` shows the reason"
            yield Finding(FindingKind.UNCHECKED, entry.waiting, sentence, entry.target)


def report_uncounted_tables(default: str, claimed: Claims) -> Iterator[Finding]:
    sentence = (
        "some offsets were committed more than once, for example by a backfill, or because the topic was recreated. "
        "So the rows were not counted by table; --source checks that each row is in the right table"
    )
    yield Finding(FindingKind.NOT_COMPARED, len(claimed.routed) + 1, sentence, default)


def compare_table_counts(
    default: tuple[str, Tallies], routed: Sequence[RoutedRows], claimed: Claims, replays: PublishedReplays
) -> Iterator[Finding]:
    """Compare the rows of each table with the commit records, if each offset was committed once."""
    waiting = Counter[Target]()
    for entry in routed:
        waiting[entry.renamed or entry.target] += entry.waiting
    for name, (rows, expected) in row_counts(default, routed, claimed, replays).items():
        if rows != expected:
            row_text = format_count(rows - waiting[name], "row")
            waiting_text = f" and {format_count(waiting[name], 'row', 'waits|wait')} for it," if waiting[name] else ""
            sentence = f"the table has {row_text},{waiting_text} but commit records count {expected:,}"
            yield Finding(FindingKind.MISCOUNTED, abs(rows - expected), sentence, name)


def join_table_counts(
    notes: tuple[Finding, ...], findings: tuple[Finding, ...], dead_letters: Collection[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Join findings by table (`notes`) with findings by partition (`findings`) that report the same number of rows.

    Does not join findings of many partitions, or `dead_letters`, which are the findings in `findings` without rows.
    """
    by_table = [f for f in notes if f.kind is FindingKind.MISCOUNTED]
    rows = {FindingKind.MISSING, FindingKind.MISCOUNTED, FindingKind.DUPLICATES}
    by_partition = [f for f in findings if f.kind in rows and f not in dead_letters]
    same = sum(f.count for f in by_table) == sum(f.count for f in by_partition)
    if not by_table or not same or len(by_partition) > MAX_JOINED_PARTITIONS:
        return notes, findings
    where = "; ".join(f"{f.where}: {f.sentence}" for f in by_partition)
    last = replace(by_table[-1], kind=by_partition[0].kind, sentence=f"{by_table[-1].sentence}. By partition: {where}")
    other_notes = tuple(f for f in notes if f is not by_table[-1])
    return (*other_notes, last), tuple(f for f in findings if f not in by_partition)


def row_counts(
    default: tuple[str, Tallies], routed: Sequence[RoutedRows], claimed: Claims, replays: PublishedReplays
) -> dict[Target, tuple[int, int]]:
    """Return two numbers of rows for each table: in the claimed ranges, and according to commit records."""
    replayed = {target: _count_claimed(offsets, claimed) for target, offsets in replays.routed.items()}
    of_default = claimed.records - sum(claimed.routed.values()) + _count_claimed(replays.rows, claimed)
    expected = Counter({default[0]: of_default - sum(replayed.values()), **claimed.routed})
    expected.update(replayed)
    for entry in routed:
        if entry.renamed:
            expected[entry.renamed] += expected.pop(entry.target, 0)
    return {
        name: (
            _count_claimed(seen_offsets(tallies), claimed)
            + sum(tally.copies for tp, tally in tallies.items() if tp in claimed.ranges),
            expected[name],
        )
        for name, tallies in _by_table(default, routed).items()
    }


def find_misplaced_rows(
    evidence: Sequence[Evidence],
    default: tuple[str, Tallies],
    routed: Sequence[RoutedRows],
    by_target: Mapping[Target, Tallies],
    counts: Mapping[Target, tuple[int, int]],
) -> Iterator[Finding]:
    """Report rows outside their route's table. `counts` shows whether an earlier route may have written such rows."""
    expected = {default[0] if target == "main" else target: parts for target, parts in by_target.items()}
    for name, tallies in _by_table(default, routed).items():
        for e in evidence:
            tp = e.topic_partition
            rows = get_offsets(tallies, tp) - get_offsets(expected.get(name, {}), tp) - e.ambiguous
            for other in sorted(expected.keys() - {name}):
                if misplaced := rows & get_offsets(expected[other], tp):
                    count, committed = counts[name]
                    earlier = "" if count > committed else ". An earlier declaration of the route may have written them"
                    sentence = (
                        f"the table has {format_count(len(misplaced), 'row')} that the route, as declared now, sends "
                        f"to table {other}: {e.partition_label} {format_at_offsets(misplaced)}{earlier}"
                    )
                    kind = FindingKind.NOT_COMPARED if earlier else FindingKind.MISCOUNTED
                    yield Finding(kind, len(misplaced), sentence, name)
    deleted = sum(
        len(claimed_offsets(e.ranges) & e.rows.seen & offset_bitmap(0, e.kafka.first)) for e in evidence if e.kafka
    )
    if deleted:
        sentence = (
            f"cannot check that {format_count(deleted, 'row', 'is|are')} in the right table: Kafka no longer has the "
            "records, and some offsets were committed more than once"
        )
        yield Finding(FindingKind.NOT_COMPARED, deleted, sentence, default[0])


def _by_table(default: tuple[str, Tallies], routed: Sequence[RoutedRows]) -> dict[str, Tallies]:
    """Return the tallies of each table's rows, by the table's current name."""
    by_name = defaultdict[Target, list[Tallies]](list)
    for entry in routed:
        by_name[entry.renamed or entry.target].append(entry.rows)
    return {default[0]: default[1], **{name: merge_tallies(tallies) for name, tallies in by_name.items()}}


def _count_claimed(offsets: OffsetSets, claimed: Claims) -> int:
    of_both = ((offsets[tp], merge_ranges(ranges)) for tp, ranges in claimed.ranges.items() if tp in offsets)
    return sum(found.range_cardinality(*span) for found, spans in of_both for span in spans)
