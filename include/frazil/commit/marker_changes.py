"""Changes a marker for an operator (reset, adopt, forget, give up), and writes a routed table's first marker. Each
change is a compare-and-swap with an empty snapshot, which fences a running writer. A reset drops rows of open windows
only if the stream will read them again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Container, Sequence

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.commit.commit_checks import FORGOTTEN_PREFIX, forgotten_ends, row_count
from frazil.commit.committer import dead_letter_ends
from frazil.commit.compare_and_swap import Change, Done, TableHandle, swap
from frazil.commit.followers import NO_BATCH
from frazil.commit.history import ancestors
from frazil.commit.journal import Journal, bare_path
from frazil.commit.marked_update import OPEN_SNAPSHOT_KEY, MarkedUpdate, commit_marker
from frazil.commit.marker import (
    BatchKey,
    Marker,
    first_marker,
    keep_same_topics,
    merge_identities,
    open_branch_name,
    property_name,
    read_marker,
    try_read_marker,
)
from frazil.commit.open_branch import BranchChange, read_files, release_waiting_files
from frazil.commit.reset_plan import NO_OFFSETS, StateBeforeReset, is_rolled_back, marker_after_reset
from frazil.commit.settle import epochs_in_summaries, highest_epoch
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folders, referenced_paths
from frazil.commit.waiting_files import MissingTableNote, load_missing_table_note, write_missing_table_note
from frazil.errors import MarkerUnreadable, RolledBack, TableLost, WriterBusy
from frazil.ingest.contract import Target
from frazil.offsets.spans import Offsets, SourceIdentity, TopicPartition
from frazil.table.branches import head_of, summary_value
from frazil.table.lost_tables import check_own_folder, find_other_table
from frazil.table.tables import may_delete_files

log = logging.getLogger(__name__)


def reset(
    tables: StreamTables,
    *,
    target: Offsets,
    source: SourceIdentity,
    seen: StateBeforeReset,
    truncated_at: Offsets = NO_OFFSETS,
) -> Marker:
    """Move the stream to the offsets `target`, in the next epoch. Raises `WriterBusy` if `seen` is outdated."""
    epoch = 1 + _highest_epoch_ever(tables)
    marker = marker_after_reset(
        seen, stream=tables.stream, epoch=epoch, target=target, source=source, truncated_at=truncated_at
    )

    def decide(table: Table) -> Marker:
        if table.metadata.properties.get(property_name(tables.stream)) != seen.marker_text:
            raise WriterBusy(
                f"stream {tables.stream!r} committed while its new position was being chosen, so a writer is running. "
                f"Run `frazil pause {tables.stream}`, then reset again"
            )
        return marker

    dropped: list[str] = []

    def open_windows(table: Table) -> BranchChange | None:
        change = plan_open_branch_reset(table, tables, seen, target=target, source=source)
        dropped[:] = [f.file_path for f in change.leaving_files] if change and change.removes_branch else []
        return change

    change_marker(tables, tables.main, decide, operation="reset", branch_change=open_windows)
    main = tables.main.refresh()
    if dropped and may_delete_files(main.properties):
        needed = referenced_paths(main)
        tables.store.delete([path for path in dropped if bare_path(path) not in needed])
    _reset_dead_letters(tables, seen, epoch=epoch, source=source)
    return marker


def _reset_dead_letters(tables: StreamTables, seen: StateBeforeReset, *, epoch: int, source: SourceIdentity) -> None:
    """Set the dead-letter marker, even a damaged one, to `epoch` and the end of all records ever read."""
    read = [(seen.held, seen.source)] if seen.source else []
    read += [(seen.marker.offsets, seen.marker.source)] if seen.marker else []

    def decide(table: Table) -> Marker:
        marker = try_read_marker(table.metadata.properties, tables.stream)
        state = (marker.offsets, marker.source) if marker else (dead_letter_ends(table, tables.stream, source), source)
        offsets: dict[TopicPartition, int] = {}
        topics = source
        for ends, identities in (*read, state):
            topics = merge_identities(identities, topics)
            for tp, end in keep_same_topics(ends, identities, source).items():
                offsets[tp] = max(end, offsets.get(tp, end))
        if marker is None:
            first = first_marker(tables.stream, epoch=epoch, offsets=offsets, source=topics)
            return dataclasses.replace(first, own_table=tables.own_table())
        if is_rolled_back(table, marker, name=tables.dead_letters.identifier):
            # The rollback removed the newest dead letters, and a batch that was staged before has left them out.
            marker = dataclasses.replace(marker, settled=None, batches={})
        return dataclasses.replace(marker.with_epoch(epoch), offsets=offsets, source=topics)

    change_marker(tables, tables.dead_letters, decide, operation="reset")


def adopt(tables: StreamTables, *, offsets: Offsets, source: SourceIdentity) -> Marker:
    """Write a stream's first marker to a table with rows. Returns this marker, or the existing one."""
    first = first_marker(tables.stream, epoch=1 + highest_epoch(tables), offsets=offsets, source=source)

    def decide(table: Table) -> Marker:
        former = {tp: end for tp, end in forgotten_ends(table.metadata.properties, source).items() if tp in offsets}
        adopted = dataclasses.replace(
            first,
            adopted_rows=row_count(table.metadata) or 0,
            rewritten={tp: ((0, end),) for tp, end in former.items() if end},
            landed={tp: offsets[tp] for tp in former},
        )
        return read_marker(table.metadata.properties, tables.stream) or adopted

    return change_marker(tables, tables.main, decide, operation="adopt") or first


def forget(tables: StreamTables, *, state: str) -> int:
    """Remove the stream's markers from all tables, which fences its writers. Then remove its objects under `state`.

    Returns the number of objects. Keeps all rows, and moves the rows of open windows to main. If the folder also has
    another table's metadata, the dead-letter table must confirm the catalog. Else raises TableLost, before any change.
    """
    main = tables.main.refresh()
    check_own_folder(main.catalog, main)
    other = find_other_table(tables.store, main)
    if other and not _is_own_catalog(tables, {other.uuid, str(main.metadata.table_uuid)}):
        raise TableLost(
            f"{other.path} is the metadata of another table ({other.uuid}) in the folder of {tables.main.identifier}. "
            f"The commit records of stream {tables.stream!r} in this folder may belong to that table. If the catalog "
            "was replaced, configure the right catalog. If that table was dropped, delete its metadata by hand"
        )

    def waiting_to_main(table: Table) -> BranchChange | None:
        exists = open_branch_name(tables.stream) in table.metadata.refs
        return release_waiting_files(table, tables.stream) if exists else None

    for handle in tables.targets.values():
        change_marker(tables, handle, lambda _: None, operation="forget", branch_change=waiting_to_main)
    foreign = tables.journals.paths_of_other_tables(str(main.metadata.table_uuid))
    objects = [file.path for file in tables.store.list_files(state) if file.path not in foreign]
    tables.store.delete(objects)
    return len(objects)


def _is_own_catalog(tables: StreamTables, uuids: Container[str | None]) -> bool:
    """Return whether the dead-letter table names one of these UUIDs, or its stream was forgotten."""
    properties = tables.dead_letters.refresh().metadata.properties
    marker = try_read_marker(properties, tables.stream)
    wrote = marker is not None and marker.own_table is not None and marker.own_table.uuid in uuids
    return wrote or FORGOTTEN_PREFIX + tables.stream in properties


def forget_dead_letters(tables: StreamTables) -> None:
    """Remove the stream's marker from its dead-letter table, after the stream's own table was dropped."""
    change_marker(tables, tables.dead_letters, lambda _: None, operation="forget")


def change_marker(
    tables: StreamTables,
    handle: TableHandle,
    decide: Callable[[Table], Marker | None],
    *,
    operation: str,
    branch_change: Callable[[Table], BranchChange | None] | None = None,
) -> Marker | None:
    """Commit the marker that `decide` returns. If it returns None, remove the existing marker, even a damaged one."""
    update = MarkedUpdate(tables.stream)
    handle.forget()

    def propose(table: Table) -> Done[Marker | None] | Change[Marker | None]:
        text = table.metadata.properties.get(property_name(tables.stream))
        marker = decide(table)
        if (marker.to_property() if marker else None) == text:
            return Done(marker)
        summary = {"frazil.stream": tables.stream, "frazil.operation": operation}
        if marker and marker.open_snapshot_id is not None:
            summary[OPEN_SNAPSHOT_KEY] = str(marker.open_snapshot_id)
        if marker:
            summary |= {"frazil.epoch": str(marker.key.epoch), "frazil.batch-id": str(marker.key.batch)}
        change = branch_change(table) if branch_change else None
        return update.prepare(table, marker, change, summary=summary, now_ms=tables.clock_ms())

    return swap(handle, propose, update.written, retry_policy=tables.retry_policy)


def _highest_epoch_ever(tables: StreamTables) -> int:
    """Return the highest epoch, or 0. Searches staged files and snapshots if a marker is unreadable."""
    try:
        return highest_epoch(tables)
    except MarkerUnreadable:
        epochs = {tables.journals.highest_epoch()}
    for target, handle in tables.targets.items():
        table = handle.current()
        epochs |= {key.epoch for key, _ in batch_folders(tables.store_of(target), table, tables.stream)}
        epochs |= epochs_in_summaries(ancestors(table.metadata), tables.stream)
    return max(epochs, default=0)


def plan_open_branch_reset(
    table: Table, tables: StreamTables, seen: StateBeforeReset, *, target: Offsets, source: SourceIdentity
) -> BranchChange | None:
    """Return the open branch's change for a stream that continues at `target`. Raises `RolledBack` if rows are lost."""
    metadata, name = table.metadata, open_branch_name(tables.stream)
    accepted = seen.marker is None or all(target.get(tp, o) >= o for tp, o in seen.marker.offsets.items())
    head, expected = head_of(metadata, name), _expected_head(metadata, seen, is_accepted=accepted)
    base = head if expected is None else metadata.snapshot_by_id(expected)
    if base is None and expected is not None:
        if not accepted:
            raise RolledBack(
                f"table {tables.main.identifier} lost rows of open windows of stream {tables.stream!r}: snapshot "
                f"{expected} of branch {name!r} has expired. `frazil reset {tables.stream} --to marker` accepts the "
                "loss. To read the rows again, reset once more after that, to a position before these windows"
            )
        base = head
    if base is None:
        return None if expected is None else BranchChange(None, removes_branch=True)
    manifests = base.manifests(table.io)
    read_again = [m for m in manifests if _are_read_again(_commit_records(m, table, tables), target, source)]
    stays = tuple(m for m in manifests if m not in read_again)
    return BranchChange(base, stays, read_files(read_again, table.io), drops=True, removes_branch=not stays)


def _expected_head(metadata: TableMetadata, seen: StateBeforeReset, *, is_accepted: bool) -> int | None:
    """Return the id of the open branch's head that matches main's state, if known."""
    if seen.marker is None:
        return None
    if not seen.rolled_back or is_accepted:
        return seen.marker.open_snapshot_id
    commits = (s for s in ancestors(metadata) if summary_value(s, "frazil.stream") == seen.marker.stream)
    text = summary_value(next(commits, None), OPEN_SNAPSHOT_KEY)
    return int(text) if text else None


def _commit_records(manifest: ManifestFile, table: Table, tables: StreamTables) -> list[Journal | None]:
    folders = {tuple(file.file_path.rsplit("/", 3)[-3:-1]) for file in read_files([manifest], table.io)}
    keys = [BatchKey(int(epoch), int(batch)) for epoch, batch in folders if epoch.isdigit() and batch.isdigit()]
    return [tables.journals.get(key) for key in keys]


def _are_read_again(records: Sequence[Journal | None], target: Offsets, source: SourceIdentity) -> bool:
    return bool(records) and all(
        record is not None
        and bool(position := keep_same_topics(target, source, record.source))
        and all(position.get(p.topic_partition, p.end) <= p.start for p in record.progress)
        for record in records
    )


def write_first_marker(
    tables: StreamTables, handle: TableHandle, default_marker: Marker, *, previous_batch: Journal | None = None
) -> None:
    """Write a table's first marker: after the default table's last batch or, if given, just before `previous_batch`."""
    first = _up_to_date_marker(default_marker)
    if previous_batch is not None:
        starts = {p.topic_partition: p.start for p in previous_batch.progress}
        settled = BatchKey(previous_batch.key.epoch, previous_batch.key.batch - 1)
        first = dataclasses.replace(first, settled=settled, offsets={**first.offsets, **starts})

    def decide(_: Table, current: Marker | None) -> Marker | Done[Marker]:
        return first if current is None else Done(current)

    commit_marker(tables, handle, decide, summary={"frazil.operation": "follow"})


def discard_rows_of_existing_table(tables: StreamTables, target: Target, default_marker: Marker) -> None:
    """Discard a routed table's waiting rows, so that its commits resume. Raises the same errors as `swap`."""

    def decide(table: Table) -> Marker:
        current = try_read_marker(table.metadata.properties, tables.stream)
        now = tables.marker()  # read after the routed table, so it is never behind that table's marker
        if current is None or now is None or is_ahead(current, now) or not is_ahead(current, default_marker):
            return _up_to_date_marker(default_marker)
        return current.with_snapshots(-1, -1, open_snapshot_id=None)

    change_marker(tables, tables.handle(target), decide, operation="give-up")


def discard_rows_of_missing_table(tables: StreamTables, target: Target, default_marker: Marker) -> None:
    """Discard the rows that wait for a missing table. If the table is created later, it gets only later batches."""
    note = load_missing_table_note(tables, target) or MissingTableNote(
        target, None, "the rows for this table were discarded"
    )
    write_missing_table_note(tables, dataclasses.replace(note, given_up=default_marker.settled))


def is_ahead(table: Marker, default_marker: Marker) -> bool:
    """Return whether a routed table is ahead of the default table, as after the default table was recreated."""
    return (table.settled or NO_BATCH) > (default_marker.settled or NO_BATCH)


def _up_to_date_marker(default_marker: Marker) -> Marker:
    return Marker(
        default_marker.stream,
        default_marker.key,
        settled=default_marker.settled or NO_BATCH,
        offsets=dict(default_marker.offsets),
        source=default_marker.source,
        batches=dict(default_marker.batches),
    )
