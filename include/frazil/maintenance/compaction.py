"""Which partitions a compaction rewrites, which it leaves, and why: pure, from a deep measurement.

Ordered by benefit, that is files removed for each byte rewritten, complete partitions first. A rewrite must at least
halve a partition's small files, so that what a rewrite leaves behind is never worth the next one for ever.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from frazil.maintenance.health import PartitionFiles, TableHealth
from frazil.spec.maintenance import Compaction

DELETES_PER_FILE = 0.1
"""A partition with one delete file to ten data files is rewritten for them alone: each reader opens and applies all."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One partition that is rewritten, in whole or in part."""

    partition: PartitionFiles
    files: int
    bytes: int
    removed: int
    """How many files there will be less."""
    reason: str
    applies_deletes: bool = False
    """All of its files are read, and none of its delete files is left."""
    below_bytes: int | None = None
    """Where it is taken in part: only files smaller than this, so that `files` times this are within the budget."""
    beside_files: int = 0
    """Of older partition specs: Iceberg takes those as well whose rows may be the partition's."""
    beside_bytes: int = 0

    @property
    def in_part(self) -> bool:
        """Only so many `files` of it: the budget ends within it."""
        return self.below_bytes is not None


class Why(StrEnum):
    """Why a partition with small files is left."""

    FEW = "too few small files"
    MARGINAL = "a rewrite would not halve them"
    OLD_SPEC = "an older partition spec"
    BESIDE = "small files of older partition specs beside them"
    BUDGET = "beyond the budget"


@dataclass(frozen=True, slots=True)
class Left:
    """A partition with small files that are not rewritten now."""

    partition: PartitionFiles
    why: Why
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    rewrites: tuple[Rewrite, ...]
    left: tuple[Left, ...]
    sentence: str

    @property
    def files(self) -> int:
        return sum(r.files for r in self.rewrites)

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.rewrites)


def plan_compaction(
    health: TableHealth, settings: Compaction, *, complete_before_us: int | None, spec_id: int
) -> CompactionPlan:
    """What one run rewrites of a table that was measured deeply.

    `complete_before_us`: partitions whose time ends by then are not written any more; None where that is unknown. A
    partition without a time of the event is always open. `spec_id` is the table's default partition spec: what is of
    an older one is left, because Iceberg would spread it over any number of today's partitions. It takes such small
    files all the same where their time is a chosen partition's: they count against the budget.
    """
    target = health.target_file_bytes
    worth: list[tuple[bool, Rewrite]] = []
    left: list[Left] = []
    for partition in health.partitions or ():
        complete = is_complete(partition, complete_before_us)
        judged = _judge(partition, settings, target=target, complete=complete, spec_id=spec_id)
        if isinstance(judged, Rewrite):
            worth.append((complete, judged))
        elif judged:
            left.append(judged)
    worth.sort(key=lambda w: (not w[0], -benefit(w[1]), w[1].partition.path))
    old = [p for p in health.partitions or () if p.spec_id != spec_id and (p.small_files or p.delete_files)]
    taken, beyond = _within(settings.budget, [rewrite for _, rewrite in worth], old, target=target)
    left += beyond
    return CompactionPlan(taken, tuple(left), _sentence(taken, left))


def is_complete(partition: PartitionFiles, complete_before_us: int | None) -> bool:
    end_us = partition.window_end_us
    return end_us is not None and complete_before_us is not None and end_us <= complete_before_us


def benefit(rewrite: Rewrite) -> float:
    """Files removed for each byte that is rewritten."""
    return rewrite.removed / max(rewrite.bytes, 1)


def _judge(
    partition: PartitionFiles, settings: Compaction, *, target: int, complete: bool, spec_id: int
) -> Rewrite | Left | None:
    """A partition by itself, whatever the budget; None where it has no small files and few delete files."""
    deletes = partition.delete_files > 0 and partition.delete_files >= DELETES_PER_FILE * partition.files
    if not partition.small_files and not deletes:
        return None
    if partition.spec_id != spec_id:
        why = f"it is of partition spec {partition.spec_id}, which the table gave up: rewrite it by hand"
        return Left(partition, Why.OLD_SPEC, why)
    if deletes:
        gone = partition.files + partition.delete_files - _files_of(partition.bytes, target)
        why = f"{partition.delete_files:,} delete files are applied to {partition.files:,} files by every reader"
        return Rewrite(partition, partition.files, partition.bytes, max(gone, 1), why, applies_deletes=True)
    least, state = (settings.min_files, "complete") if complete else (settings.open_files, "still written")
    count, removed = partition.small_files, _removed(partition.small_files, partition.small_bytes, target)
    if count < least:
        return Left(partition, Why.FEW, f"it is {state}, and {count:,} small files are fewer than {least:,}")
    if not removed:
        return Left(partition, Why.MARGINAL, f"its {count:,} small files would become more than half as many")
    why = f"it is {state}: {count:,} small files become {count - removed:,}"
    return Rewrite(partition, count, partition.small_bytes, removed, why)


def _removed(files: int, size: int, target: int) -> int:
    """How many small files a rewrite removes; 0 where it does not even halve them."""
    removed = files - _files_of(size, target)
    return removed if files > 1 and 2 * removed >= files else 0


def _files_of(size: int, target: int) -> int:
    return max(-(-size // target), 1)


def _within(
    budget: int, ordered: Sequence[Rewrite], old: Sequence[PartitionFiles], *, target: int
) -> tuple[tuple[Rewrite, ...], list[Left]]:
    """The best ones that fit, of the next one as much as fits, and nothing after it: so none is passed over for ever.

    A partition with delete files is taken whole or not at all, and alone where it is beyond any budget. What would
    not even fit alone is passed over: neither with its files of `old` specs, nor in a part that is halved.
    """
    taken: list[Rewrite] = []
    left: list[Left] = []
    rest, spent = budget, f"the {budget:,} bytes of one run go to partitions that gain more"
    for place, alone in enumerate(ordered):
        beside = [p for p in old if _may_share_rows(p, alone.partition)]
        rewrite = _with(alone, beside)
        cost = rewrite.bytes + rewrite.beside_bytes
        fitting = rewrite if cost <= rest else None if beside else _part(rewrite, rest, target=target)
        if beside and cost > budget:
            why = f"{rewrite.beside_files:,} small files of older specs would be rewritten with it, {cost:,} bytes"
            left.append(Left(alone.partition, Why.BESIDE, f"{why} in all: rewrite those by hand"))
            continue
        if fitting is None and rewrite.applies_deletes and not taken:
            fitting = rewrite
        if cost > budget and not rewrite.applies_deletes and not _part(rewrite, budget, target=target):
            why = f"{rewrite.reason}; it is beyond any run's budget, and no part of it is sure to be halved"
            left.append(Left(alone.partition, Why.MARGINAL, why))
            continue
        if fitting is not None:
            taken.append(fitting)
            rest -= fitting.bytes + fitting.beside_bytes
            old = [p for p in old if not _may_share_rows(p, alone.partition)]
        if fitting is not rewrite or rest <= 0:
            later = ordered[place + 1 if fitting else place :]
            left += [Left(r.partition, Why.BUDGET, f"{r.reason}, and {spent}") for r in later]
            break
    return tuple(taken), left


def _may_share_rows(one: PartitionFiles, other: PartitionFiles) -> bool:
    """Unless their times are known, and apart."""
    spans = (one.window_begin_us, one.window_end_us, other.window_begin_us, other.window_end_us)
    begin, end, other_begin, other_end = spans
    if begin is None or end is None or other_begin is None or other_end is None:
        return True
    return begin < other_end and other_begin < end


def _with(rewrite: Rewrite, beside: Sequence[PartitionFiles]) -> Rewrite:
    """All that Iceberg may rewrite together with it."""
    if not beside:
        return rewrite
    whole = rewrite.applies_deletes  # then it takes each file that has deletes, however large
    files = sum(p.files if whole else p.small_files for p in beside)
    size = sum(p.bytes if whole else p.small_bytes for p in beside)
    why = f"{rewrite.reason}, with up to {files:,} small files of older specs"
    return dataclasses.replace(rewrite, reason=why, beside_files=files, beside_bytes=size)


def _part(rewrite: Rewrite, rest: int, *, target: int) -> Rewrite | None:
    """As many of the partition's small files as are sure to fit, and to be halved; None where fewer than two are.

    Iceberg takes any of the files below a size. No more than `bytes / below` files are as large as `below` (Markov's
    inequality), and an even number of files below half the target becomes half as many.
    """
    if rewrite.applies_deletes or rest < target:
        return None
    below = max(min(-(-2 * rewrite.bytes // rewrite.files), target // 2), 1)
    files = min(rest // below, rewrite.files - rewrite.bytes // below) // 2 * 2
    if not files:
        return None
    size = -(-rewrite.bytes * files // rewrite.files)
    why = f"{rewrite.reason}; {files:,} of those below {below:,} bytes are within the budget"
    removed = files - _files_of(size, target)
    return dataclasses.replace(rewrite, files=files, bytes=size, removed=removed, reason=why, below_bytes=below)


def _sentence(taken: Iterable[Rewrite], left: Iterable[Left]) -> str:
    done, reasons = list(taken), Counter(each.why for each in left)
    if done:
        files, size, gone = (sum(getattr(r, name) for r in done) for name in ("files", "bytes", "removed"))
        head = f"{files:,} files of {size:,} bytes in {len(done):,} partitions become {gone:,} fewer"
    else:
        head = "nothing is worth a rewrite"
    rest = ", ".join(f"{count:,} for {why}" for why, count in reasons.most_common())
    return f"{head}; left are {rest}" if rest else head
