"""Whether a batch is shuffled, and to which writers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from frazil.errors import CommitUnavailable
from frazil.ingest.contract import PartitionKey, StagedFile
from frazil.stream.distribution import (
    MAX_ASSIGNED_PARTITIONS,
    MIN_PIECE_SHARE,
    MIN_RATIO_TO_BEGIN,
    MIN_RATIO_TO_CONTINUE,
    Distribution,
    Distributor,
    RecentSizes,
    assign_writers,
    decide_distribution,
)

FILE = 100
KEYS = st.tuples(st.one_of(st.none(), st.text(max_size=3)), st.text(max_size=2))
SIZES = st.dictionaries(KEYS, st.floats(1, 1e12), max_size=60)


def staged(partition: PartitionKey, size: int, *, spec_id: int = 0) -> StagedFile:
    none: dict[int, Any] = {}
    return StagedFile("main", "/f", 1, size, 0, spec_id, None, partition, none, none, none, none, none, none, ())


def wrote(sizes: dict[str, int], *, tasks: int = 1) -> list[StagedFile]:
    """The files of a batch in which each task had rows of each partition."""
    return [staged((name,), size // tasks) for name, size in sizes.items() for _ in range(tasks)]


@given(SIZES, st.integers(1, 40))
def test_every_partition_has_its_writers_and_every_writer_its_bytes(
    sizes: dict[PartitionKey, float], writers: int
) -> None:
    shares = assign_writers(sizes, writers)
    assert shares.keys() == sizes.keys()
    load: Counter[int] = Counter()
    for key, parts in shares.items():
        ends = [0.0, *(end for _, end in parts)]
        assert ends == sorted(ends)
        assert ends[-1] == 1.0
        assert len({writer for writer, _ in parts}) == len(parts)
        for (writer, end), begin in zip(parts, ends, strict=False):
            assert 0 <= writer < writers
            load[writer] += sizes[key] * (end - begin)  # type: ignore[assignment]
    part = sum(sizes.values()) / writers
    # What is not cut off as a sliver is shared by all writers of its partition.
    assert all(size <= part * (1 + 2 * MIN_PIECE_SHARE) * (1 + 1e-9) for size in load.values())
    assert sum(len(parts) - 1 for parts in shares.values()) < writers


@given(SIZES, st.integers(1, 40))
def test_writer_assignment_does_not_depend_on_the_order_of_observations(
    sizes: dict[PartitionKey, float], writers: int
) -> None:
    assert assign_writers(dict(reversed(sizes.items())), writers) == assign_writers(sizes, writers)


def test_a_hot_partition_gets_several_writers_and_small_partitions_share_one() -> None:
    sizes: dict[PartitionKey, float] = {("hot",): 300.0, **{(str(i),): 1.0 for i in range(100)}}
    shares = assign_writers(sizes, 4)
    assert [writer for writer, _ in shares["hot",]] == [0, 1, 2]
    assert {shares[str(i),] for i in range(100)} == {((3, 1.0),)}


def decided(recent: RecentSizes, *, declared: Any = "auto", tasks: int = 4, **known: Any) -> Distribution:
    given = {"is_partitioned": True, "target_file_bytes": FILE, "previous": None} | known
    return decide_distribution(declared, recent, tasks=tasks, **given)


MANY = RecentSizes(0).after(wrote({str(i): 40 for i in range(100)}, tasks=4), partitions=None)


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ({"declared": "none"}, "distribution: none"),
        ({"is_partitioned": False}, "the table has no partitions"),
        ({"is_partitioned": False, "declared": "hash"}, "the table has no partitions"),
        ({"tasks": 1}, "one task writes the batch"),
        ({"tasks": 1, "declared": "hash"}, "one task writes the batch"),
    ],
)
def test_rows_are_not_shuffled_if_that_saves_no_file(known: dict[str, Any], reason: str) -> None:
    found = decided(MANY, **known)
    assert (found.shuffled, found.reason) == (False, reason)


def test_many_small_files_are_a_reason_to_shuffle() -> None:
    found = decided(MANY)
    assert found.shuffled
    assert found.reason == "100 live partitions: about 400 files per batch without a shuffle, 100 with one"
    assert (found.partitions, found.files_alone, found.files_shuffled) == (100, 400, 100)


def test_large_files_are_no_reason_to_shuffle() -> None:
    big = RecentSizes(0).after(wrote({str(i): 40 * FILE for i in range(100)}, tasks=4), partitions=None)
    assert decided(big).reason.endswith("4000 with one: a shuffle would save too few files")


def test_a_few_files_are_no_reason_to_shuffle() -> None:
    few = RecentSizes(0).after(wrote({"a": 10, "b": 10}, tasks=4), partitions=None)
    assert not decided(few).shuffled


def test_without_known_sizes_rows_are_shuffled_only_if_declared() -> None:
    assert not decided(RecentSizes(0)).shuffled
    assert decided(RecentSizes(0), declared="hash").shuffled


def between(files_alone: float) -> RecentSizes:
    return replace(MANY, files_alone=files_alone)


def test_a_shuffle_decision_stays_while_the_ratio_is_between_the_bounds() -> None:
    middle = between((MIN_RATIO_TO_BEGIN + MIN_RATIO_TO_CONTINUE) / 2 * 100)
    begun = decided(MANY)
    assert not decided(middle).shuffled
    assert decided(middle, previous=begun).shuffled
    assert not decided(between(MIN_RATIO_TO_CONTINUE * 100 - 1), previous=begun).shuffled


def test_a_shuffled_batch_estimates_its_files_without_a_shuffle() -> None:
    recent = MANY
    for _ in range(10):
        recent = recent.after(wrote({str(i): 40 for i in range(100)}), partitions=400)
    assert decided(recent, previous=decided(MANY)).files_alone == 400


def test_journals_are_read_again_after_a_read_that_failed() -> None:
    files = wrote({str(i): 40 for i in range(100)}, tasks=4)
    journal: Any = SimpleNamespace(staged_for=lambda _: files, partitions=None)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "a"))
    distributor, reads = Distributor(), 0

    def journals() -> Iterator[Any]:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise CommitUnavailable("the storage failed")
        yield journal

    with pytest.raises(CommitUnavailable):
        distributor.decide("auto", spec, journals, tasks=4, target_file_bytes=FILE)
    found = [distributor.decide("auto", spec, journals, tasks=4, target_file_bytes=FILE).partitions for _ in range(2)]
    assert (found, reads) == ([100, 100], 2)


def test_sizes_of_partitions_that_are_no_longer_written_are_forgotten() -> None:
    recent = MANY
    batches = 0
    while len(recent.bytes) > 1:
        recent = recent.after(wrote({"new": 40}), partitions=4)
        batches += 1
    assert batches <= math.ceil(math.log2(1 / 0.01)) + 1


def test_files_of_another_partition_spec_are_ignored() -> None:
    assert MANY.after([staged(("x", "y"), 1, spec_id=1)], partitions=None) == MANY


def test_sizes_are_predicted_only_for_the_largest_partitions() -> None:
    sizes = {str(i): i + 1 for i in range(MAX_ASSIGNED_PARTITIONS + 5)}
    assert min(RecentSizes(0).after(wrote(sizes), partitions=None).bytes.values()) == 6
