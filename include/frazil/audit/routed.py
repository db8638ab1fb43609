"""The rows of a stream with a route, in its home and in the tables of its route, as one audit sees them.

Which rows went to which table is what commit records say: no declaration is asked, so a table that the route no longer
has is audited too. Rows that wait for a table that is behind are counted from their files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow.parquet as pq
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO

from frazil.audit.claims import Claims
from frazil.audit.compare import Evidence, Finding, FindingKind, counted_once, merged_ranges
from frazil.commit.beside_home import all_beside, is_beside, some_beside
from frazil.commit.followers import Followers, lacked
from frazil.commit.journal import Journal
from frazil.commit.marker import Marker
from frazil.commit.members import member_of
from frazil.commit.stream_tables import StreamTables
from frazil.ingest.contract import Target
from frazil.offsets.spans import TopicPartition
from frazil.offsets.tally import OffsetTally, Tallies
from frazil.spec.units import counted
from frazil.table.file_bounds import COORDINATES, Within
from frazil.table.landed_offsets import OffsetArray, Wanted, by_partition, inside, tally
from frazil.table.parallel import in_parallel

LOOKS = 3
"""So often a table is looked at whose rows move to it meanwhile."""


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """What one routed table has of the audited batches."""

    target: Target
    rows: Tallies
    """With those that wait."""
    waiting: int = 0
    problem: str | None = None
    """Why the table, or a file that waits for it, could not be read."""


def routed_rows(tables: StreamTables, marker: Marker, claimed: Claims, within: Within | None) -> tuple[RoutedRows, ...]:
    """What the tables have that commit records name, up to home's marker: they may be further by now.

    `within` has the audited ranges; None for all. Raises what catalog and storage raise.
    """
    targets = sorted(claimed.routed)
    if not targets:
        return ()
    waiting = Followers.of(tables, marker).waiting
    spans: Within = {tp: ((0, end),) for tp, end in marker.offsets.items()} if within is None else within
    step = partial(_rows_of, tables, waiting, spans)
    return tuple(in_parallel(step, targets))


def _rows_of(
    tables: StreamTables, waiting: Mapping[Target, Sequence[Journal]], within: Within, target: Target
) -> RoutedRows:
    """Looks again where a file is gone that waited beside home: the table has its rows by now."""
    for _ in range(LOOKS):
        found = _looked_at(tables, waiting.get(target, ()), within, target)
        if not (found.problem and some_beside(tables, waiting.get(target, ()), target)):
            break
    return found


def _looked_at(tables: StreamTables, waiting: Sequence[Journal], within: Within, target: Target) -> RoutedRows:
    problem, home_io = None, tables.main.current().io
    try:
        table = tables.handle(target).refresh()
    except NoSuchTableError:
        # Rows that wait in its own folder are read too: they are not lost with what it had.
        found, lacks, io = defaultdict[TopicPartition, OffsetTally](OffsetTally), waiting, home_io
        if member_of(tables, target) or not waiting or not all_beside(tables, waiting, target):
            problem = "the table is not there"
    else:
        found = defaultdict(OffsetTally, tally(table, Wanted({topic for topic, _ in within}, within)))
        lacks, io = lacked(tables, table, waiting), table.io
    waits = 0
    for file in (file for journal in lacks for file in journal.staged_for(target)):
        try:
            for tp, offsets in _in_file(home_io if is_beside(tables, file) else io, file.path, within):
                found[tp].add(offsets)
                waits += len(offsets)
        except FileNotFoundError:
            problem = problem or f"a file that waits for it is gone: {file.path}"
    return RoutedRows(target, dict(found), waits, problem)


def _in_file(io: FileIO, path: str, within: Within) -> Iterator[tuple[TopicPartition, OffsetArray]]:
    with io.new_input(path).open() as stream:
        batches = pq.read_table(stream, columns=list(COORDINATES)).combine_chunks().to_batches()
    for batch in batches:
        for tp, offsets in by_partition(batch.select(COORDINATES).drop_null()):
            yield from ((tp, piece) for piece in inside(offsets, tp, within) if len(piece))


def together(home: Tallies, routed: Iterable[RoutedRows]) -> dict[TopicPartition, OffsetTally]:
    """The rows of all tables. A row that two of them have is there twice."""
    whole: dict[TopicPartition, OffsetTally] = defaultdict(OffsetTally)
    for rows in (home, *(one.rows for one in routed)):
        for tp, found in rows.items():
            whole[tp].merge(found)
    return dict(whole)


def compare_tables(
    evidence: Sequence[Evidence], home: tuple[str, Tallies], routed: Sequence[RoutedRows], claimed: Claims
) -> Iterator[Finding]:
    """Which tables have other numbers of rows than commit records count for them; `home` is its name and its rows.

    Pure.
    """
    for one in routed:
        if one.problem:
            yield Finding(FindingKind.MISSING, 1, one.problem, one.target)
        if one.waiting:
            waits = counted(one.waiting, "row", "waits|wait")
            sentence = f"{waits} to be committed to it. The command `frazil route` says why, if that lasts"
            yield Finding(FindingKind.UNCHECKED, one.waiting, sentence, one.target)
    if not all(map(counted_once, evidence)):
        sentence = "offsets were read more than once: rows are not counted table by table"
        yield Finding(FindingKind.UNCHECKED, 1, sentence, home[0])
        return
    replayed = sum(map(len, claimed.replayed.values()))
    said = {home[0]: claimed.records - sum(claimed.routed.values()) + replayed, **claimed.routed}
    for name, tallies in (home, *((one.target, one.rows) for one in routed)):
        rows = _rows_of_claims(tallies, claimed)
        if off := rows - said[name]:
            sentence = f"it has {counted(rows, 'row')}, and commit records count {said[name]:,} for it"
            yield Finding(FindingKind.MISCOUNTED, abs(off), sentence, name)


def _rows_of_claims(tallies: Tallies, claimed: Claims) -> int:
    """How many rows lie in the ranges that commit records claim; others have findings of their own."""
    return sum(
        tallies[tp].copies + sum(tallies[tp].seen.range_cardinality(*span) for span in merged_ranges(ranges))
        for tp, ranges in claimed.ranges.items()
        if tp in tallies
    )
