"""Decides which partitions a compaction rewrites, which it leaves, and why. Pure. Complete partitions come before
incomplete partitions. Within each of these groups, rewrites that remove more files per byte come first. A rewrite must
halve a partition's small files, or it would be repeated forever.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from frazil.maintenance.health import PartitionFiles, PartitionKey, TableHealth
from frazil.spec.maintenance import Compaction
from frazil.spec.units import format_count

MIN_DELETES_PER_FILE = 0.1
"""Minimum number of shared delete files per data file at which a whole partition is rewritten."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The rewrite of a partition, or of some of its files."""

    partition: PartitionFiles
    files: int
    bytes: int
    removed: int
    """Expected decrease in the partition's files."""
    reason: str
    applies_deletes: bool = False
    """Whether all files are rewritten. No delete file is then left."""
    below_bytes: int | None = None
    """Size below which files are rewritten, if set."""
    old_spec_files: int = 0
    """Files of older specs that Iceberg also rewrites, because they may have rows of the partition."""
    old_spec_bytes: int = 0
    deleted_percent: int | None = None
    """Percentage of deleted rows from which data files are rewritten, if set."""
    small: bool = True
    """Whether small files are rewritten."""
    all_deletes: bool = False
    """Whether every file with deleted rows is rewritten."""
    largest_bytes: int | None = None
    """Size of the largest file to rewrite, if only some files with many deleted rows are rewritten."""
    busy: bool = False
    """Whether batches are being merged into the partition. The rewrite then comes last, and is retried."""

    @property
    def is_partial(self) -> bool:
        """Whether only some files are rewritten, to stay within the budget."""
        return self.below_bytes is not None or self.largest_bytes is not None

    @property
    def kind(self) -> tuple[object, ...] | None:
        """Rewrites of the same kind can share an Iceberg action; None if a rewrite needs an action of its own."""
        if self.is_partial or self.applies_deletes:
            return None
        return self.small, self.all_deletes, self.deleted_percent, self.busy


MAX_BUSY_ACTIONS = 8
"""Maximum number of actions on busy partitions in one run."""
MAX_PARTITIONS_PER_ACTION = 200
"""Maximum number of partitions per action. Iceberg compares every file with each of them."""


def group_into_actions(rewrites: Iterable[Rewrite], *, target: int) -> list[list[Rewrite]]:
    """Return each action's rewrites, in order. Actions on busy partitions stay small, to fit between two batches."""
    actions: list[list[Rewrite]] = []
    last: dict[object, tuple[list[Rewrite], int]] = {}
    for rewrite in rewrites:
        action, size = last.get(rewrite.kind, ([], 0)) if rewrite.kind else ([], 0)
        size += rewrite.bytes
        if len(action) == MAX_PARTITIONS_PER_ACTION or (rewrite.busy and size > target // MAX_BUSY_ACTIONS):
            action, size = [], rewrite.bytes
        if not action:
            actions.append(action)
        action.append(rewrite)
        last[rewrite.kind] = action, size
    return actions


class SkipReason(StrEnum):
    TOO_FEW_FILES = "too few small files"
    MARGINAL = "a rewrite would not halve their number"
    OLD_SPEC = "an older partition spec"
    OVERLAP = "files of older partition specs would be rewritten too"
    BUDGET = "beyond the budget"
    BUSY = "batches are being merged into them"
    LONG_PATH = "folder names that are too long"


FIX_FOR_LONG_PATHS = (
    "set the table properties write.object-storage.enabled=true and write.object-storage.partitioned-paths=false"
)


@dataclass(frozen=True, slots=True)
class SkippedPartition:
    """A partition with small files that this run does not rewrite."""

    partition: PartitionFiles
    kind: SkipReason
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    rewrites: tuple[Rewrite, ...]
    left: tuple[SkippedPartition, ...]
    sentence: str
    dangling: tuple[str, ...] = ()
    """Delete files to drop, because their data files no longer exist."""

    @property
    def files(self) -> int:
        return sum(r.files for r in self.rewrites)

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.rewrites)


def plan_compaction(  # noqa: PLR0913 - what a plan depends on
    health: TableHealth,
    settings: Compaction,
    *,
    complete_before_us: int | None,
    spec_id: int,
    busy: Set[PartitionKey] = frozenset(),
    too_long: Set[PartitionKey] = frozenset(),
) -> CompactionPlan:
    """Choose the partitions that one run rewrites, from a deep measurement.

    Partitions that end by `complete_before_us` (since 1970) get no more rows. Only partitions of `spec_id` are chosen.
    Iceberg also rewrites overlapping small files of other specs, which count against the budget. Rewrites of `busy`
    partitions come last, few and small: each may force a batch to merge again. Spark cannot create the folders of
    `too_long` partitions.
    """
    target = health.target_file_bytes
    worth: list[tuple[bool, Rewrite]] = []
    skipped: list[SkippedPartition] = []
    for partition in health.partitions or ():
        complete = is_complete(partition, complete_before_us)
        evaluated = _evaluate(partition, settings, target=target, complete=complete, spec_id=spec_id)
        if isinstance(evaluated, Rewrite) and partition.key in too_long:
            reason = f"{evaluated.reason}; Spark cannot create its folder, because the name is too long"
            skipped.append(SkippedPartition(partition, SkipReason.LONG_PATH, f"{reason}: {FIX_FOR_LONG_PATHS}"))
        elif isinstance(evaluated, Rewrite):
            is_busy = partition.key in busy and not evaluated.applies_deletes
            worth.append((complete, dataclasses.replace(evaluated, busy=is_busy)))
        elif evaluated:
            skipped.append(evaluated)
    worth.sort(key=lambda w: (not w[0], -removed_files_per_byte(w[1]), w[1].partition.path))
    old = [p for p in health.partitions or () if p.spec_id != spec_id and (p.small_files or p.delete_files)]
    free = [rewrite for _, rewrite in worth if not rewrite.busy]
    pieces, waiting = _split_busy([rewrite for _, rewrite in worth if rewrite.busy], target=target)
    skipped += waiting
    selected, beyond = _select_within_budget(settings.budget, [*free, *pieces], old, target=target)
    skipped += beyond
    dangling = tuple(path for p in health.partitions or () for path in p.deletes.dangling)
    return CompactionPlan(selected, tuple(skipped), _describe_plan(selected, skipped), dangling)


def is_complete(partition: PartitionFiles, complete_before_us: int | None) -> bool:
    end_us = partition.window_end_us
    return end_us is not None and complete_before_us is not None and end_us <= complete_before_us


def removed_files_per_byte(rewrite: Rewrite) -> float:
    return rewrite.removed / max(rewrite.bytes, 1)


def _evaluate(
    partition: PartitionFiles, settings: Compaction, *, target: int, complete: bool, spec_id: int
) -> Rewrite | SkippedPartition | None:
    """Return a partition's rewrite, or why its small files are left; None if not needed. Ignores the budget."""
    # If all data files are gone, no reader reads the remaining shared delete files.
    deletes = bool(partition.files and partition.deletes.shared) and (
        partition.deletes.shared >= MIN_DELETES_PER_FILE * partition.files
    )
    if not (partition.small_files or partition.deletes.due_files or deletes):
        return None
    if partition.spec_id != spec_id:
        reason = f"its partition spec {partition.spec_id} is not the table's current one: rewrite it by hand"
        return SkippedPartition(partition, SkipReason.OLD_SPEC, reason)
    if deletes:
        removed = partition.files + partition.delete_files - _files_after_rewrite(partition.bytes, target)
        applied = format_count(partition.deletes.shared, "delete file")
        reason = f"every reader applies {applied} to {format_count(partition.files, 'file')}"
        return Rewrite(partition, partition.files, partition.bytes, max(removed, 1), reason, applies_deletes=True)
    small = _plan_small_files(partition, settings, target=target, complete=complete) if partition.small_files else None
    if not partition.deletes.due_files:
        return small
    return _plan_due_rewrite(partition, small if isinstance(small, Rewrite) else None, settings.deleted_rows)


def _plan_small_files(
    partition: PartitionFiles, settings: Compaction, *, target: int, complete: bool
) -> Rewrite | SkippedPartition:
    min_count, state = (settings.min_files, "complete") if complete else (settings.open_files, "still being written")
    count, deleted = partition.small_files, partition.deletes.scaled_due_files
    removed = count - _files_after_rewrite(partition.small_bytes, target)
    is_whole = count == partition.files
    if deleted and (count > 1 or is_whole):
        reason = f"rows of {deleted:,} of {format_count(count, 'small file')} are deleted"
        return Rewrite(partition, count, partition.small_bytes, removed + deleted, reason, all_deletes=is_whole)
    if count < min_count:
        return SkippedPartition(
            partition,
            SkipReason.TOO_FEW_FILES,
            f"it is {state}, and {format_count(count, 'small file', 'is|are')} fewer than {min_count:,}",
        )
    if count < 2 or 2 * removed < count:
        return SkippedPartition(
            partition,
            SkipReason.MARGINAL,
            f"a rewrite would not halve the number of its {format_count(count, 'small file')}",
        )
    reason = f"it is {state}: {format_count(count, 'small file', 'becomes|become')} {count - removed:,}"
    return Rewrite(partition, count, partition.small_bytes, removed, reason)


def _plan_due_rewrite(partition: PartitionFiles, small: Rewrite | None, percent: int) -> Rewrite:
    """Return one rewrite of the files with many deleted rows and, if given, of the `small` files."""
    due = partition.deletes
    reason = f"{percent} % or more of the rows of {format_count(due.due_files, 'file')} are deleted"
    if small is None:
        single = Rewrite(partition, due.due_files, due.due_bytes, due.due_files, reason)
        return dataclasses.replace(single, deleted_percent=percent, small=False)
    return dataclasses.replace(
        small,
        files=small.files + due.due_files - due.due_small_files,
        bytes=small.bytes + due.due_bytes - due.due_small_bytes,
        removed=small.removed + due.due_files,
        reason=f"{small.reason}; {reason}",
        deleted_percent=percent,
    )


def _split_busy(busy: Sequence[Rewrite], *, target: int) -> tuple[list[Rewrite], list[SkippedPartition]]:
    """Split rewrites of busy partitions into parts that finish between two batches. Also returns skipped partitions."""
    pieces: list[Rewrite] = []
    skipped: list[SkippedPartition] = []
    each = max(MAX_BUSY_ACTIONS // max(len(busy), 1), 1)
    for rewrite in busy:
        part: Rewrite | None = rewrite
        if rewrite.bytes > target:
            part = _plan_small_part(rewrite, target, target=target) or _plan_due_part(rewrite, 1)
        limit = f"a rewrite of at most {target:,} bytes might not halve the number of its files"
        if part is not None:
            reason = f"{part.reason}; batches are being merged into it"
            copies = [dataclasses.replace(part, reason=reason)] * min(each, max(rewrite.files // part.files, 1))
            if len(group_into_actions([*pieces, *copies], target=target)) <= MAX_BUSY_ACTIONS:
                pieces += copies
                continue
            limit = f"a run makes at most {MAX_BUSY_ACTIONS} rewrites of such partitions"
        wait_reason = f"{rewrite.reason}; batches are being merged into it, and {limit}"
        skipped.append(SkippedPartition(rewrite.partition, SkipReason.BUSY, wait_reason))
    return pieces, skipped


def _files_after_rewrite(size: int, target: int) -> int:
    return max(-(-size // target), 1)


def _select_within_budget(
    budget: int, ordered: Sequence[Rewrite], old: Sequence[PartitionFiles], *, target: int
) -> tuple[tuple[Rewrite, ...], list[SkippedPartition]]:
    """Return the rewrites of one run, in the order of `ordered`, and the partitions that are left.

    A rewrite's cost includes overlapping files of `old` specs. The first rewrite beyond the `budget` (bytes) is done in
    part, and ends the run, so that no partition waits forever. A rewrite with shared delete files is always done whole.
    A rewrite is skipped if files of `old` specs exceed the whole budget, or if no part surely halves its files.
    """
    selected: list[Rewrite] = []
    skipped: list[SkippedPartition] = []
    room, spent = budget, f"the run's budget of {budget:,} bytes is used for partitions that gain more"
    for position, alone in enumerate(ordered):
        overlapping = [p for p in old if _may_share_rows(p, alone.partition)]
        rewrite = _add_older_specs(alone, overlapping)
        cost = rewrite.bytes + rewrite.old_spec_bytes
        fitting = rewrite if cost <= room else None if overlapping else _plan_small_part(rewrite, room, target=target)
        if overlapping and cost > budget:
            old_spec_files = format_count(rewrite.old_spec_files, "small file")
            reason = f"with {old_spec_files} of older partition specs, the rewrite exceeds the budget of a run"
            reason = f"{reason} ({cost:,} bytes): rewrite those files by hand"
            skipped.append(SkippedPartition(alone.partition, SkipReason.OVERLAP, reason))
            continue
        deletes = rewrite.applies_deletes or rewrite.deleted_percent is not None
        if fitting is None and deletes and not selected and not overlapping:
            fitting = rewrite if rewrite.applies_deletes else _plan_due_part(rewrite, 1)
        if cost > budget and not deletes and not _plan_small_part(rewrite, budget, target=target):
            reason = (
                f"{rewrite.reason}; the rewrite exceeds the budget of a run, and rewriting a part might not "
                "halve the number of its files"
            )
            skipped.append(SkippedPartition(alone.partition, SkipReason.MARGINAL, reason))
            continue
        if fitting is not None:
            selected.append(fitting)
            room -= fitting.bytes + fitting.old_spec_bytes
            old = [p for p in old if not _may_share_rows(p, alone.partition)]
        if fitting is not rewrite or room <= 0:
            later = ordered[position + 1 if fitting else position :]
            skipped += [SkippedPartition(r.partition, SkipReason.BUDGET, f"{r.reason}, and {spent}") for r in later]
            break
    return tuple(selected), skipped


def _may_share_rows(first: PartitionFiles, other: PartitionFiles) -> bool:
    """Return whether the time ranges may overlap; True if one is unknown."""
    begin, end = first.window_begin_us, first.window_end_us
    other_begin, other_end = other.window_begin_us, other.window_end_us
    if begin is None or end is None or other_begin is None or other_end is None:
        return True
    return begin < other_end and other_begin < end


def _add_older_specs(rewrite: Rewrite, overlapping: Sequence[PartitionFiles]) -> Rewrite:
    """Return the rewrite, with the files of older specs that Iceberg may also rewrite."""
    if not overlapping:
        return rewrite
    all_deletes = rewrite.all_deletes and rewrite.files == 1  # several small files are chosen for their size
    takes_all = rewrite.applies_deletes or all_deletes  # Iceberg then takes every file that has deletes, however large
    due = rewrite.deleted_percent is not None
    files = sum(p.files if takes_all else p.small_files + due * p.deletes.due_files for p in overlapping)
    size = sum(p.bytes if takes_all else p.small_bytes + due * p.deletes.due_bytes for p in overlapping)
    text = f"{rewrite.reason}, with up to {format_count(files, 'small file')} of older specs"
    return dataclasses.replace(rewrite, reason=text, old_spec_files=files, old_spec_bytes=size, all_deletes=all_deletes)


def _plan_small_part(rewrite: Rewrite, budget: int, *, target: int) -> Rewrite | None:
    """Return a rewrite of as many files as fit into `budget` bytes, if it halves their number. Iceberg rewrites all
    files below a size. At most `bytes / below` of the files are not below this size (Markov's inequality). An even
    number of files below half the target becomes at most half as many.
    """
    if rewrite.deleted_percent is not None:
        return _plan_due_part(rewrite, budget // max(rewrite.partition.deletes.due_largest_bytes, 1))
    if rewrite.applies_deletes or budget < target:
        return None
    below = max(min(-(-2 * rewrite.bytes // rewrite.files), target // 2), 1)
    files = min(budget // below, rewrite.files - rewrite.bytes // below) // 2 * 2
    if files < 2:
        return None
    size = -(-rewrite.bytes * files // rewrite.files)
    reason = f"{rewrite.reason}; {files:,} of the files below {below:,} bytes fit the budget"
    removed = files - _files_after_rewrite(size, target)
    return dataclasses.replace(
        rewrite, files=files, bytes=size, removed=removed, reason=reason, below_bytes=below, all_deletes=False
    )


def _plan_due_part(rewrite: Rewrite, files: int) -> Rewrite | None:
    """Return a rewrite of up to `files` data files with many deleted rows, if there are any."""
    due = rewrite.partition.deletes
    files = min(files, due.due_files, rewrite.files)
    if not files:
        return None
    single = _plan_due_rewrite(rewrite.partition, None, rewrite.deleted_percent or 0)
    return dataclasses.replace(
        single,
        files=files,
        bytes=-(-due.due_bytes * files // due.due_files),
        removed=files,
        reason=f"{single.reason}; {files:,} of these files fit the budget",
        largest_bytes=due.due_largest_bytes,
        busy=rewrite.busy,
    )


def _describe_plan(rewrites: Iterable[Rewrite], left_partitions: Iterable[SkippedPartition]) -> str:
    rewritten, reasons = list(rewrites), Counter(each.kind for each in left_partitions)
    if rewritten:
        files, size, removed = (sum(getattr(r, name) for r in rewritten) for name in ("files", "bytes", "removed"))
        where = format_count(len(rewritten), "partition")
        kind = "data or delete file" if any(r.partition.delete_files for r in rewritten) else "file"
        head = (
            f"a rewrite of {format_count(files, 'data file')} ({size:,} bytes) in {where} removes "
            f"{format_count(removed, kind)}"
        )
    else:
        head = "no partition is worth a rewrite"
    skipped = ", ".join(f"{count:,} ({kind})" for kind, count in reasons.most_common())
    return f"{head}; partitions not rewritten: {skipped}" if skipped else head
