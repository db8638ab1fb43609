"""Counts the rows of a stream with a route, in its default table and its routed tables, for one audit.

Commit records, not the declaration, show which table got which rows. So a table that is no longer in the route is
audited too. Rows that wait for a table are counted from their files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.audit.claims import Claims
from frazil.audit.compare import ambiguous_offsets, at_offsets
from frazil.audit.evidence import Evidence
from frazil.audit.findings import Finding, FindingKind
from frazil.audit.ranges import claimed_offsets, merged_ranges
from frazil.commit.backfill_marker import BackfillMarker, has_backfill_rows, unsettled_backfill
from frazil.commit.backfill_records import committed_chunks, published_records, targets_given_up
from frazil.commit.followers import Followers, missing_journals
from frazil.commit.journal import Journal
from frazil.commit.marker import Marker, property_name
from frazil.commit.members import Member, find_renamed, journals_never_committed, newest_remaining_metadata, read_member
from frazil.commit.stream_tables import StreamTables
from frazil.commit.waiting_files import all_files_wait, has_waiting_files, is_waiting_file
from frazil.ingest.contract import StagedFile, Target
from frazil.offsets.spans import TopicPartition, offset_bitmap
from frazil.offsets.tally import OffsetTally, Tallies, merge_tallies
from frazil.spec.units import counted
from frazil.table.file_bounds import COORDINATES, Within
from frazil.table.landed_offsets import RowSelection, tally_files, tally_rows
from frazil.table.lost import registration_command
from frazil.table.parallel import in_parallel

MAX_READS = 3
"""Maximum number of attempts to read a table while its waiting rows are being committed."""


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """The rows of one routed table at the audited offsets."""

    target: Target
    rows: Tallies
    """The table's rows, including waiting rows. For a renamed table, these are the rows under its new name."""
    waiting: int = 0
    problem: str | None = None
    """Why the table, or a file that waits for it, could not be read; None without a problem."""
    renamed: Target | None = None
    """The table's new name; None if it was not renamed."""


@dataclass(frozen=True, slots=True)
class Replays:
    """All published replays of the stream's dead letters. Their rows lie in ranges that batches claim."""

    rows: Mapping[TopicPartition, BitMap64] = field(default_factory=dict)
    routed: Mapping[Target, Mapping[TopicPartition, BitMap64]] = field(default_factory=dict)
    """The part of these rows that belongs to each routed table."""
    last: BackfillMarker | None = None
    """The replay whose dead letters are still in the dead-letter table, because rows may wait for routed tables; None
    without one.
    """
    journals: Sequence[Journal] = ()
    """The journals of this replay's chunks."""
    given_up: Set[Target] = frozenset()
    """Tables whose rows of this replay an operator gave up."""

    @classmethod
    def of(cls, tables: StreamTables, default_table: Table) -> Replays:
        """Load the records of all replays that are published in the default table."""
        rows: dict[TopicPartition, BitMap64] = defaultdict(BitMap64)
        routed: dict[Target, dict[TopicPartition, BitMap64]] = defaultdict(lambda: defaultdict(BitMap64))
        for record in published_records(tables.journals, default_table.metadata, tables.stream):
            for found, of in ((rows, record.replayed), *((routed[t], of) for t, of in record.routed.items())):
                for tp, offsets in of.items():
                    found[tp] |= offsets
        last = unsettled_backfill(default_table.properties, tables.dead_letters.refresh().properties, tables.stream)
        if last is None:
            return cls(rows, routed)
        return cls(
            rows, routed, last, committed_chunks(tables.journals, last), targets_given_up(tables.journals, last.id)
        )

    def waiting(self, properties: Mapping[str, str], target: Target) -> list[StagedFile]:
        """Return the replay's files for a routed table that does not have their rows yet.

        `properties` are the table's.
        """
        if self.last is None or target in self.given_up or has_backfill_rows(properties, self.last):
            return []
        return [file for journal in self.journals for file in journal.staged_for(target)]


def routed_rows(  # noqa: PLR0913 - each source is an argument
    tables: StreamTables,
    marker: Marker,
    claimed: Claims,
    *,
    within: Within | None,
    replays: Replays,
    named: Collection[Target] = (),
) -> tuple[RoutedRows, ...]:
    """Read the routed tables that commit records name, up to the default table's marker. The tables may have later rows
    by now.

    `within` has the audited ranges; None audits all ranges. `named` are the tables that the route names: one of them
    may be a renamed table. Raises the errors of the catalog and the storage.
    """
    targets = sorted(claimed.routed.keys() | {t for t, of in replays.routed.items() if _claimed_of(of, claimed)})
    if not targets:
        return ()
    waiting = Followers.load(tables, marker).waiting
    spans: Within = {tp: ((0, end),) for tp, end in marker.offsets.items()} if within is None else within
    step = partial(_rows_of, _RowSearch(tables, waiting, spans, replays, named))
    found = in_parallel(step, targets)
    more = sorted({one.renamed for one in found if one.renamed} - {*targets})
    return (*found, *(in_parallel(step, more) if more else ()))


@dataclass(frozen=True, slots=True)
class _RowSearch:
    """The rows to find in each table, and the places to search."""

    tables: StreamTables
    waiting: Mapping[Target, Sequence[Journal]]
    within: Within
    replays: Replays
    named: Collection[Target]


def _rows_of(sought: _RowSearch, target: Target) -> RoutedRows:
    """Read a table. Reads it again if a waiting file has disappeared, because the file's rows are then in the table."""
    waiting = sought.waiting.get(target, ())
    for _ in range(MAX_READS):
        found = _read_rows(sought, waiting, target)
        if not (found.problem and (sought.replays.last or has_waiting_files(sought.tables, waiting, target))):
            break
    return found


def _read_rows(sought: _RowSearch, waiting: Sequence[Journal], target: Target) -> RoutedRows:
    tables, within = sought.tables, sought.within
    problem, renamed_to, default_io = None, None, tables.main.current().io
    found = defaultdict[TopicPartition, OffsetTally](OffsetTally)
    table: Table | None = None
    try:
        table = tables.handle(target).refresh()
    except NoSuchTableError:
        member = read_member(tables, target)
        renamed_to = None if member is None else find_renamed(tables, member, sought.named)
        if renamed_to is not None:
            table = tables.handle(renamed_to).current()
        elif member or not waiting or not all_files_wait(tables, waiting, target):
            problem = _gone(tables, target, member)
    else:
        renamed_to = _first_now(sought, target, table)
        if renamed_to is not None:  # the renamed table has all rows that are counted for the old name
            table = tables.handle(renamed_to).current()
        elif columns := [name for name in COORDINATES if name not in table.schema().column_names]:
            problem = f"it is another table than the route had: it has no column {', '.join(columns)}"
        else:
            found.update(tally_rows(table, RowSelection({topic for topic, _ in within}, within)))
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
    files += [(file, default_io) for file in sought.replays.waiting(properties, target)]
    for file, from_io in files:
        try:
            for tp, of in tally_files(from_io, [file.path], within).items():
                found[tp].merge(of)
                waits += of.rows
        except FileNotFoundError:
            problem = problem or f"a file that waits for it is gone: {file.path}"
    return RoutedRows(target, dict(found), waits, problem, renamed_to)


def _first_now(sought: _RowSearch, target: Target, table: Table) -> Target | None:
    """Return the new name of the route's table if it was renamed and another table now has its name; otherwise None."""
    if property_name(sought.tables.stream) in table.properties:
        return None
    member = read_member(sought.tables, target)
    return find_renamed(sought.tables, member, sought.named) if member and member.is_another(table) else None


def _gone(tables: StreamTables, target: Target, member: Member | None) -> str:
    """Describe what to do about a table that is not in the catalog, whether or not the route still has it."""
    catalog, newest = tables.main.catalog_name, None if member is None else newest_remaining_metadata(tables, member)
    again = "" if newest is None else f": `{registration_command(catalog, target, newest.path)}`"
    return (
        f"the table is not in the catalog {catalog!r}: it was dropped or renamed. If the route has it by this name, "
        f"`frazil route {tables.stream}` shows the remedy. If not, its rows stay missing until it is renamed back, "
        f"declared in route.tables by its new name, or registered again{again}"
    )


def unread_rows(routed: Sequence[RoutedRows]) -> Iterator[Finding]:
    """Report tables that could not be read, and rows that wait for tables. Pure."""
    for one in routed:
        if one.problem:
            yield Finding(FindingKind.MISSING, 1, one.problem, one.target)
        if one.waiting:
            waits = counted(one.waiting, "row", "waits|wait")
            sentence = f"{waits} to be committed to it. The command `frazil route` says why, if that lasts"
            yield Finding(FindingKind.UNCHECKED, one.waiting, sentence, one.target)


def not_counted(default: str, claimed: Claims) -> Iterator[Finding]:
    """Report that the rows of the tables were not compared table by table."""
    sentence = (
        "offsets were committed more than once, as by a backfill: rows were not counted table by table (--source "
        "compares each row's table)"
    )
    yield Finding(FindingKind.NOT_COMPARED, len(claimed.routed) + 1, sentence, default)


def count_tables(
    default: tuple[str, Tallies], routed: Sequence[RoutedRows], claimed: Claims, replays: Replays
) -> Iterator[Finding]:
    """Compare the number of rows of each table with the number that commit records count for it. Pure.

    `default` is the name and the rows of the default table. Each offset must have been committed only once.
    """
    replayed = {target: _claimed_of(offsets, claimed) for target, offsets in replays.routed.items()}
    of_default = claimed.records - sum(claimed.routed.values()) + _claimed_of(replays.rows, claimed)
    said = Counter({default[0]: of_default - sum(replayed.values()), **claimed.routed})
    said.update(replayed)
    for one in routed:
        if one.renamed:
            said[one.renamed] += said.pop(one.target, 0)
    for name, tallies in _by_table(default, routed).items():
        rows = _rows_of_claims(tallies, claimed)
        if off := rows - said[name]:
            sentence = f"it has {counted(rows, 'row')}, and commit records count {said[name]:,} for it"
            yield Finding(FindingKind.MISCOUNTED, abs(off), sentence, name)


def compare_places(
    evidence: Sequence[Evidence],
    default: tuple[str, Tallies],
    routed: Sequence[RoutedRows],
    placed: Mapping[Target, Tallies],
) -> Iterator[Finding]:
    """Report rows that are in another table than the one to which the route's current declaration would write them.
    Pure.

    `placed` maps each table to the offsets of Kafka's records that belong to it. Missing records have their own
    findings.
    """
    expected = {default[0] if target == "main" else target: of for target, of in placed.items()}
    for name, tallies in _by_table(default, routed).items():
        for e in evidence:
            tp = e.topic, e.partition
            rows = _seen(tallies, tp) - _seen(expected.get(name, {}), tp) - ambiguous_offsets(e)
            for other in sorted(expected.keys() - {name}):
                if strangers := rows & _seen(expected[other], tp):
                    sentence = (
                        f"it has {counted(len(strangers), 'row')} that the route, as declared now, has for table "
                        f"{other}: {e.topic}-{e.partition} {at_offsets(strangers)}"
                    )
                    yield Finding(FindingKind.MISCOUNTED, len(strangers), sentence, name)
    gone = sum(
        len(claimed_offsets(e.ranges) & e.rows.seen & offset_bitmap(0, e.kafka.first)) for e in evidence if e.kafka
    )
    if gone:
        sentence = (
            f"{counted(gone, 'row', 'is|are')} of records that are gone from Kafka, and the table of each was not "
            "compared: offsets were committed more than once"
        )
        yield Finding(FindingKind.NOT_COMPARED, gone, sentence, default[0])


def _by_table(default: tuple[str, Tallies], routed: Sequence[RoutedRows]) -> dict[str, Tallies]:
    """Map the current name of each table to its rows."""
    by_name = defaultdict[Target, list[Tallies]](list)
    for one in routed:
        by_name[one.renamed or one.target].append(one.rows)
    return {default[0]: default[1], **{name: merge_tallies(of) for name, of in by_name.items()}}


def _seen(tallies: Tallies, tp: TopicPartition) -> BitMap64:
    return tallies[tp].seen if tp in tallies else BitMap64()


def _claimed_of(offsets: Mapping[TopicPartition, BitMap64], claimed: Claims) -> int:
    """Return how many of the offsets are within the ranges that commit records claim."""
    return sum(
        offsets[tp].range_cardinality(*span)
        for tp, ranges in claimed.ranges.items()
        if tp in offsets
        for span in merged_ranges(ranges)
    )


def _rows_of_claims(tallies: Tallies, claimed: Claims) -> int:
    """Return how many rows are within the ranges that commit records claim. Other rows have their own findings."""
    return sum(
        tallies[tp].copies + sum(tallies[tp].seen.range_cardinality(*span) for span in merged_ranges(ranges))
        for tp, ranges in claimed.ranges.items()
        if tp in tallies
    )
