"""Decides whether a batch's rows are shuffled, and which writers each table partition gets. Pure.

Without a shuffle, a task writes a file for each table partition of its rows. With a shuffle, a table partition's size
determines its number of files.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from operator import itemgetter
from typing import Literal

from pyiceberg.partitioning import PartitionSpec

from frazil.commit.journal import Journal
from frazil.ingest.contract import PartitionKey, Shuffle, StagedFile

MIN_RATIO_TO_BEGIN = 1.5
"""Factor by which a shuffle must divide the number of files, before shuffling begins."""
MIN_RATIO_TO_CONTINUE = 1.2
MIN_SAVED_FILES = 16
"""Minimum number of files that a shuffle must save. Fewer files are not worth its CPU time."""
NEWEST_WEIGHT = 0.5
MIN_KEPT_SHARE = 0.01
"""A partition without new rows is forgotten once its average is below this share of the mean partition."""
MAX_ASSIGNED_PARTITIONS = 10_000
"""Maximum number of partitions, largest first, that are assigned to writers."""
FILE_COST_BYTES = 24 * 1024
"""Bytes of Parquet that cost as much CPU as one more file (`python -m bench.distribution`)."""
MAX_RECENT_COMMITS = 4
"""Maximum number of commit records that a new writer reads to compute averages."""
MIN_PIECE_SHARE = 0.05
"""Minimum piece of a partition for a writer, as a fraction of a writer's average bytes."""


@dataclass(frozen=True, slots=True)
class RecentSizes:
    """Average bytes that recent batches wrote to each partition. The newest batch counts half."""

    spec_id: int
    bytes: Mapping[PartitionKey, float] = field(default_factory=dict)
    files_alone: float = 0.0
    """Average number of files per batch without a shuffle."""

    def after(self, files: Iterable[StagedFile], *, partitions: int | None) -> RecentSizes:
        """Return the averages after a batch with these files in main. Ignores files of another partition spec."""
        newest: dict[PartitionKey, float] = defaultdict(float)
        count = 0
        for file in files:
            if file.spec_id == self.spec_id:
                newest[file.partition] += file.bytes
                count += 1
        if not newest:
            return self
        alone = float(max(partitions or 0, count))
        if not self.bytes:
            return replace(self, bytes=_keep_largest(newest), files_alone=alone)
        threshold = MIN_KEPT_SHARE * sum(newest.values()) / len(newest)
        mixed = {key: _moving_average(self.bytes.get(key, 0.0), newest.get(key, 0.0)) for key in {*self.bytes, *newest}}
        retained = {key: size for key, size in mixed.items() if key in newest or size > threshold}
        return replace(self, bytes=_keep_largest(retained), files_alone=_moving_average(self.files_alone, alone))


def _moving_average(average: float, current: float) -> float:
    return average + NEWEST_WEIGHT * (current - average)


def _keep_largest(sizes: Mapping[PartitionKey, float]) -> dict[PartitionKey, float]:
    return dict(_sort_by_size(sizes)[:MAX_ASSIGNED_PARTITIONS])


@dataclass(frozen=True, slots=True)
class Distribution:
    shuffle: Shuffle | None
    """The shuffle; None if each task writes the rows that it reads."""
    reason: str
    partitions: int = 0
    """Number of partitions to which recent batches wrote."""
    files_alone: int = 0
    files_shuffled: int = 0

    @property
    def shuffled(self) -> bool:
        return self.shuffle is not None


def decide_distribution(  # noqa: PLR0913 - the facts about one batch
    declared: Literal["none", "hash", "auto"],
    recent: RecentSizes,
    *,
    is_partitioned: bool,
    tasks: int,
    target_file_bytes: int,
    previous: Distribution | None,
) -> Distribution:
    """Decide whether to shuffle a batch of `tasks` tasks. After a shuffle (`previous`), a smaller saving suffices."""
    if declared == "none":
        return Distribution(None, "distribution: none")
    if not is_partitioned:
        return Distribution(None, "the table has no partitions")
    if tasks == 1:
        return Distribution(None, "one task writes the batch")
    shares = assign_writers({key: size + FILE_COST_BYTES for key, size in recent.bytes.items()}, tasks)
    needed = {key: math.ceil(size / target_file_bytes) for key, size in recent.bytes.items()}
    files = max(round(recent.files_alone), sum(needed.values()))
    apart = sum(max(needed[key], len(parts)) for key, parts in shares.items())
    reason = f"{len(shares)} live partitions: about {files} files per batch without a shuffle, {apart} with one"
    distribution = Distribution(Shuffle(tasks, shares), reason, len(shares), files, apart)
    if declared == "hash":
        return replace(distribution, reason=f"distribution: hash; {distribution.reason}")
    bound = MIN_RATIO_TO_CONTINUE if previous is not None and previous.shuffled else MIN_RATIO_TO_BEGIN
    saved = distribution.files_alone - distribution.files_shuffled
    if saved >= MIN_SAVED_FILES and distribution.files_alone >= bound * distribution.files_shuffled:
        return distribution
    return replace(distribution, shuffle=None, reason=f"{distribution.reason}: a shuffle would save too few files")


@dataclass(slots=True)
class Distributor:
    """Decides for the batches of one writer. Remembers what they wrote, and the last decision."""

    recent: RecentSizes | None = None
    last: Distribution | None = None

    def decide(
        self,
        declared: Literal["none", "hash", "auto"],
        spec: PartitionSpec,
        newest_journals: Callable[[], Iterable[Journal]],
        *,
        tasks: int,
        target_file_bytes: int,
    ) -> Distribution:
        """Decide for the next batch. Reads journals only for the first batch with a partition spec."""
        if self.recent is None or self.recent.spec_id != spec.spec_id:
            newest = [*islice(newest_journals(), MAX_RECENT_COMMITS)]
            self.recent = RecentSizes(spec.spec_id)
            for journal in reversed(newest):
                self.continue_after(journal)
        self.last = decide_distribution(
            declared,
            self.recent,
            is_partitioned=bool(spec.fields),
            tasks=tasks,
            target_file_bytes=target_file_bytes,
            previous=self.last,
        )
        return self.last

    def continue_after(self, journal: Journal) -> None:
        if self.recent is not None:
            self.recent = self.recent.after(journal.staged_for("main"), partitions=journal.partitions)


def assign_writers(
    sizes: Mapping[PartitionKey, float], writers: int
) -> dict[PartitionKey, tuple[tuple[int, float], ...]]:
    """Assign writers to partitions by McNaughton's wrap-around rule, and return `Shuffle.shares`.

    The partitions, largest first, form a line, which is cut into equal lengths, one per writer. Very small pieces are
    left out. A writer therefore gets at most `1 + 2 * MIN_PIECE_SHARE` times an equal length.
    """
    ordered = _sort_by_size(sizes)
    length = sum(size for _, size in ordered) / writers
    shares: dict[PartitionKey, tuple[tuple[int, float], ...]] = {}
    start = 0.0
    for key, size in ordered:
        end = start + size
        parts = [
            (writer, min(end, length * (writer + 1)) - max(start, length * writer))
            for writer in range(min(int(start / length), writers - 1), min(int(end / length), writers - 1) + 1)
        ]
        pieces = [p for p in parts if p[1] >= MIN_PIECE_SHARE * length] or [max(parts, key=itemgetter(1))]
        ends = list(accumulate(size for _, size in pieces))
        shares[key] = tuple(
            (writer, end_of_share / ends[-1]) for (writer, _), end_of_share in zip(pieces, ends, strict=True)
        )
        start = end
    return shares


def _sort_by_size(sizes: Mapping[PartitionKey, float]) -> Sequence[tuple[PartitionKey, float]]:
    return sorted(sizes.items(), key=lambda item: (-item[1], [(value is not None, value or "") for value in item[0]]))
