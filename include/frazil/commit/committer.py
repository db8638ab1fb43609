"""Commits a writer's take-over, dead letters and batches, each with the stream's new marker.

Commits are safe without clocks or locks, because of four rules. A marker changes only with a snapshot on main. Each
epoch belongs to one process. A journal is complete before its batch is committed. Staged files never change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.commit.commit_checks import (
    CommitDecision,
    check_adopted,
    check_ancestry,
    check_fence,
    check_open_branch,
    check_same_source,
    classify_batch,
    classify_dead_letters,
    files_fit,
)
from frazil.commit.compare_and_swap import Done, TableCommit, TableHandle, commit_snapshots
from frazil.commit.dead_letter_counts import ACCEPTED_KEY, reasons_summary
from frazil.commit.followers import Followers
from frazil.commit.history import windows_summary
from frazil.commit.journal import NO_DEAD_LETTERS, Journal
from frazil.commit.marked_update import commit_marker, prepare_commit, prepare_merge, preview
from frazil.commit.marker import (
    NO_TRANSACTION,
    BatchKey,
    Marker,
    first_marker,
    keep_same_topics,
    merge_identities,
    read_marker,
)
from frazil.commit.open_branch import BranchChange, align_batch, check_aligned, release_waiting_files
from frazil.commit.snapshot import MAX_SUMMARY_CHARACTERS
from frazil.commit.stream_tables import StreamTables
from frazil.errors import CommitUnavailable, StaleBatch
from frazil.ingest.contract import StagedFile
from frazil.offsets.spans import Offsets, SourceIdentity, TopicPartition, covered_offsets
from frazil.partitions.completeness import watermark_us
from frazil.table.branches import head_of, summary_value
from frazil.table.landed_offsets import RowSelection, tally_rows


class Committer:
    def __init__(self, tables: StreamTables, epoch: int, followers: Followers | None = None) -> None:
        self._tables = tables
        self.epoch = epoch
        self.followers = followers
        """The routed tables; None if the stream never had a route."""
        self._existing: dict[TopicPartition, BitMap64] | None = None

    @classmethod
    def take_over(  # noqa: PLR0913 - keywords, each of one caller
        cls,
        tables: StreamTables,
        *,
        source: SourceIdentity,
        initial: Callable[[], Offsets],
        first_epoch: int = 1,
        after: int | None = None,
        load_followers: Callable[[Marker], Followers] | None = None,
    ) -> Committer:
        """Begin the next epoch. Once its marker is committed, no earlier epoch can commit to either table.

        `initial` returns the offsets of a stream without a marker. `first_epoch` is above every epoch that staged files
        here. `after` is this process's last epoch: raises `Fenced` if another epoch has begun since then. Also raises
        `RolledBack`, `TopicRecreated`, `AdoptionRequired`, `SchemaIncompatible`.
        """

        def decide(table: Table, marker: Marker | None) -> Marker:
            if after is not None:
                check_fence(marker, stream=tables.stream, epoch=after)
            check_aligned(table.metadata, tables.align, table=tables.main.identifier)
            if marker is None:
                check_adopted(table.metadata, stream=tables.stream, table=tables.main.identifier, source=source)
                return first_marker(tables.stream, epoch=first_epoch, offsets=initial(), source=source)
            _check_not_rolled_back(table, marker, tables.main)
            check_same_source(marker.source, source, stream=tables.stream)
            epoch = max(marker.key.epoch + 1, first_epoch)
            return dataclasses.replace(marker.with_epoch(epoch), source=merge_identities(marker.source, source))

        tables.main.forget()
        taken = commit_marker(tables, tables.main, decide, summary={"frazil.operation": "take-over"})
        committer = cls(tables, taken.key.epoch)._fence_dead_letters(source)
        committer.followers = load_followers(taken) if load_followers else None
        return committer

    def _fence_dead_letters(self, source: SourceIdentity) -> Committer:
        """Write the epoch to the dead-letter table, which prevents commits of earlier writers."""

        def decide(table: Table, marker: Marker | None) -> Marker | Done[Marker]:
            if marker is None:
                offsets = dead_letter_ends(table, self._tables.stream, source)
                first = first_marker(self._tables.stream, epoch=self.epoch, offsets=offsets, source=source)
                return dataclasses.replace(first, own_table=own_table)
            if marker.key.epoch == self.epoch:  # it landed, and only the answer was lost
                return Done(marker)
            if marker.key.epoch > self.epoch:
                check_fence(marker, stream=self._tables.stream, epoch=self.epoch)
            check_ancestry(table.metadata, marker, table=self._tables.dead_letters.identifier)
            offsets = keep_same_topics(marker.offsets, marker.source, source)
            merged = merge_identities(marker.source, source)
            return dataclasses.replace(
                marker.with_epoch(self.epoch), offsets=offsets, source=merged, own_table=own_table
            )

        own_table = self._tables.own_table()
        self._tables.dead_letters.forget()
        commit_marker(self._tables, self._tables.dead_letters, decide, summary={"frazil.operation": "take-over"})
        return self

    def commit(self, journal: Journal) -> Marker:
        """Commit the batch's dead letters, then its rows, or both in one step. Returns the marker after the batch, even
        if it was already committed. Checks the main table first, so a stale batch adds no dead letters.

        Raises `Fenced`, `RolledBack`, `TopicRecreated`, `StaleBatch`, `SchemaIncompatible`, `AccessDenied`,
        `CommitUnavailable`.
        """
        main, align, files = self._tables.main, self._tables.align, journal.staged_for("main")
        merge = prepare_merge(self._tables, journal, files)

        def decide(table: Table, current: Marker | None) -> Marker | Done[Marker]:
            marker = check_fence(current, stream=self._tables.stream, epoch=self.epoch)
            _check_not_rolled_back(table, marker, main)
            check_same_source(marker.source, journal.source, stream=journal.stream)
            decision = classify_batch(marker, journal)
            if decision is CommitDecision.COMMITTED:
                return Done(marker)
            _check_can_land(table, journal, decision, files, marker=marker)
            check_aligned(table.metadata, align, table=main.identifier, files=files)
            advanced = advance_marker(marker, journal)
            if marker.routed is None and not journal.routed:
                return advanced
            complete = self.followers.last_complete_batch if self.followers else marker.routed or marker.settled
            return dataclasses.replace(advanced, routed=complete or BatchKey(0, 0))

        def branch_change(table: Table, marker: Marker) -> BranchChange | None:
            if align is not None:
                return align_batch(table, marker, files, align)
            return None if marker.open_snapshot_id is None else release_waiting_files(table, marker.stream, files)

        if merge:
            main.forget()  # a merge that begins from an older snapshot is in vain
        prospect = preview(self._tables, main, decide)
        if isinstance(prospect, Done):
            return prospect.result
        if merge and prospect.open_snapshot_id is not None:
            self._release_open_windows()
        summary = self._batch_summary(journal)
        batch = prepare_commit(
            self._tables, main, decide, files=files, merge=merge, summary=summary, branch_change=branch_change
        )
        together = self.followers.atomic_commits(journal) if self.followers else ()
        commits = (self._dead_letter_commit(journal), *together, batch)
        committed = commit_snapshots(
            commits, retry_policy=self._tables.retry_policy, commit_atomically=self._tables.commit_atomically
        )
        if self.followers and committed.settled == journal.key:
            self.followers.add(journal)
        return committed

    def commit_dead_letters(self, journal: Journal) -> Marker:
        """Commit only the batch's dead letters. Raises the errors of `commit`."""
        return commit_snapshots((self._dead_letter_commit(journal),), retry_policy=self._tables.retry_policy)

    def _release_open_windows(self) -> None:
        """Move rows from the stream's open branch to main, if `commit.align` is no longer declared."""

        def decide(table: Table, current: Marker | None) -> Marker | Done[Marker]:
            marker = check_fence(current, stream=self._tables.stream, epoch=self.epoch)
            _check_not_rolled_back(table, marker, self._tables.main)
            return Done(marker) if marker.open_snapshot_id is None else marker

        def to_main(table: Table, marker: Marker) -> BranchChange | None:
            return release_waiting_files(table, marker.stream)

        tables, summary = self._tables, {"frazil.operation": "release"}
        release = prepare_commit(tables, tables.main, decide, files=(), summary=summary, branch_change=to_main)
        commit_snapshots((release,), retry_policy=tables.retry_policy)

    def _dead_letter_commit(self, journal: Journal) -> TableCommit[Marker]:
        files = journal.staged_for("dead-letters")

        def decide(table: Table, current: Marker | None) -> Marker | Done[Marker]:
            marker = check_fence(current, stream=self._tables.stream, epoch=self.epoch)
            check_ancestry(table.metadata, marker, table=self._tables.dead_letters.identifier)
            decision = classify_dead_letters(marker, journal)
            if journal.key.epoch == self.epoch and (marker.settled or NO_DEAD_LETTERS) < journal.newest_dead_letters:
                raise CommitUnavailable(
                    f"table {self._tables.dead_letters.identifier} no longer has the dead letters of batch "
                    f"{journal.newest_dead_letters}, whose commit the catalog had confirmed",
                    remedy="The next start commits them again",
                )
            if decision is CommitDecision.STALE:
                raise StaleBatch(
                    f"dead letters were committed after batch {journal.key} of stream {journal.stream!r} was staged. "
                    "They may be records of this batch, so the batch is staged again"
                )
            if decision is CommitDecision.COMMITTED or not files:
                return Done(marker)
            _check_can_land(table, journal, decision, files, marker=marker)
            # The table's dead letters lie below these offsets, even after a reset to lower offsets.
            offsets = keep_same_topics(marker.offsets, marker.source, journal.source)
            offsets |= {p.topic_partition: max(p.end, offsets.get(p.topic_partition, p.end)) for p in journal.progress}
            source = merge_identities(marker.source, journal.source)
            return dataclasses.replace(marker.with_batch(journal.key), offsets=offsets, source=source)

        dead_letters = self._tables.dead_letters
        return prepare_commit(self._tables, dead_letters, decide, files=files, summary=self._batch_summary(journal))

    def skip(self, first: Offsets, *, lost: str) -> Marker:
        """Advance the marker to Kafka's first offsets, where the marker is lower. Raises the errors of `commit`."""

        def decide(table: Table, current: Marker | None) -> Marker | Done[Marker]:
            marker = check_fence(current, stream=self._tables.stream, epoch=self.epoch)
            _check_not_rolled_back(table, marker, self._tables.main)
            ahead = {tp: offset for tp, offset in first.items() if marker.offsets.get(tp, offset) < offset}
            if not ahead:
                return Done(marker)
            key = BatchKey(self.epoch, marker.key.batch + 1)
            # The skipped offsets may belong to later leaders than the one that had the marker's offset.
            epochs = {tp: epoch for tp, epoch in marker.leader_epochs.items() if tp not in ahead}
            return dataclasses.replace(marker, key=key, offsets={**marker.offsets, **ahead}, leader_epochs=epochs)

        summary = {"frazil.operation": "skip-gap", "frazil.lost": lost[:MAX_SUMMARY_CHARACTERS]}
        return commit_marker(self._tables, self._tables.main, decide, summary=summary)

    def existing_dead_letters(self, marker: Marker) -> dict[TopicPartition, bytes]:
        """Return the offsets of dead letters at or after the marker's position, as serialised `BitMap64`s."""
        if self._existing is None:
            table = self._tables.dead_letters.current()
            self._existing = existing_dead_letters(table, self._dead_letter_marker(), marker)
        ahead = {tp: bits for tp, bits in self._existing.items() if bits and bits.max() >= marker.offsets.get(tp, 0)}
        return {tp: offsets.serialize() for tp, offsets in ahead.items()}

    def newest_dead_letters(self) -> BatchKey:
        marker = self._dead_letter_marker()
        return (marker and marker.settled) or NO_DEAD_LETTERS

    def _dead_letter_marker(self) -> Marker | None:
        return read_marker(self._tables.dead_letters.current().metadata.properties, self._tables.stream)

    def _batch_summary(self, journal: Journal) -> dict[str, str]:
        counts = {"frazil.dropped": journal.dropped, "frazil.future": journal.future_rows, "frazil.cast": journal.cast}
        counts |= {"frazil.with-ignored-fields": journal.with_ignored, "frazil.other-events": journal.other_events}
        counts |= {"frazil.without-columns": journal.without_columns}
        return {
            "frazil.records": str(journal.records),
            "frazil.rejected": str(journal.rejected),
            **{name: str(count) for name, count in counts.items() if count},
            **reasons_summary(journal.reasons),
            **reasons_summary(journal.accepted, ACCEPTED_KEY),
            **windows_summary(journal.windows),
            **(journal.cost.summary() if journal.cost else {}),
            "frazil.commit-record": self._tables.journals.path(journal.key),
        }


def _check_not_rolled_back(table: Table, marker: Marker, handle: TableHandle) -> None:
    check_ancestry(table.metadata, marker, table=handle.identifier)
    check_open_branch(table.metadata, marker, table=handle.identifier)


def advance_marker(marker: Marker, journal: Journal) -> Marker:
    ends = {p.topic_partition: p.end for p in journal.progress}
    newest = dict(marker.max_event_times_us)
    for p in journal.progress:
        if p.max_event_time_us is not None:
            newest[p.topic_partition] = max(p.max_event_time_us, newest.get(p.topic_partition, p.max_event_time_us))
    # New partitions without a record are known from now on, and hold the watermark back.
    offsets = {**journal.offsets_after, **marker.offsets, **ends}
    # Idleness and leader epochs do not hold for partitions that a reset has moved since the batch was planned.
    planned = {tp for tp, offset in offsets.items() if journal.offsets_after.get(tp) == offset}
    idle = journal.idle & planned
    epochs = {tp: epoch for tp, epoch in journal.leader_epochs.items() if tp in planned}
    watermark = watermark_us(newest, partitions=offsets.keys(), idle=idle, previous_us=marker.watermark_us)
    if journal.source.topic_ids.keys() - {topic for topic, _ in offsets}:
        watermark = marker.watermark_us  # the partitions of a new topic are known only to the next batch
    return dataclasses.replace(
        marker.with_batch(journal.key),
        offsets=offsets,
        source=merge_identities(marker.source, journal.source),
        max_event_times_us=newest,
        idle=idle,
        leader_epochs={**marker.leader_epochs, **epochs},
        transaction=journal.transaction if planned == offsets.keys() else NO_TRANSACTION,
        watermark_us=watermark,
        dead_letters=journal.key if journal.staged_for("dead-letters") else marker.dead_letters,
    )


def _check_can_land(
    table: Table, journal: Journal, decision: CommitDecision, files: tuple[StagedFile, ...], *, marker: Marker
) -> None:
    where = f"batch {journal.key} of stream {journal.stream!r}"
    if decision is CommitDecision.STALE:
        pairs = {f"{p.topic}-{p.partition}": (p.start, marker.offsets.get(p.topic_partition)) for p in journal.progress}
        off = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        raise StaleBatch(f"{where} does not start at the marker's offsets (batch, marker): {off}. It is staged again")
    if not files_fit(table.metadata, files):
        raise StaleBatch(
            f"{where} was staged for a schema or partition spec that the table no longer has. It is staged again"
        )


def existing_dead_letters(table: Table, dead_letters: Marker | None, marker: Marker) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of dead letters from the stream's position on. Omits offsets that Kafka assigned twice."""
    ends = keep_same_topics(dead_letters.offsets, dead_letters.source, marker.source) if dead_letters else {}
    ahead = {tp: [(marker.offsets.get(tp, 0), end)] for tp, end in ends.items() if end > marker.offsets.get(tp, 0)}
    if not ahead:
        return {}
    selection = RowSelection({topic for topic, _ in ahead}, ahead, marker.source.topic_ids, stream=marker.stream)
    tallies = tally_rows(table, selection)
    return {tp: tally.seen - covered_offsets(marker.rewritten.get(tp, ())) for tp, tally in tallies.items()}


def dead_letter_ends(table: Table, stream: str, source: SourceIdentity) -> dict[TopicPartition, int]:
    """Return the offset after each partition's last dead letter, by reading the whole table."""
    head = head_of(table.metadata)
    if head is None or summary_value(head, "total-records") == "0":
        return {}
    tallies = tally_rows(table, RowSelection(source.topic_ids.keys(), topic_ids=source.topic_ids, stream=stream))
    return {tp: int(tally.seen.max()) + 1 for tp, tally in tallies.items() if tally.seen}
