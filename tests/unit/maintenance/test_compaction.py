"""The partitions to rewrite: laws of the plan, on any table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.maintenance.compaction import (
    MAX_BUSY_ACTIONS,
    MAX_PARTITIONS_PER_ACTION,
    CompactionPlan,
    SkipReason,
    group_into_actions,
    is_complete,
    plan_compaction,
    removed_files_per_byte,
)
from frazil.maintenance.health import Deletes, PartitionFiles, TableHealth
from frazil.maintenance.plans import find_long_paths
from frazil.spec.maintenance import Compaction

TARGET = 1_000
SMALL = 749
"""The largest small file."""
SETTINGS = Compaction(budget=20_000, min_files=5, open_files=20)


def of(  # noqa: PLR0913 - what a partition is
    path: str = "day=1",
    *,
    small: int = 10,
    size: int = 10,
    end_us: int | None = 1,
    deletes: int = 0,
    spec: int = 0,
    due: tuple[int, int] = (0, 0),
    scaled: int = 0,
) -> PartitionFiles:
    """A partition of that many small files of a size, and two large ones; `deletes` are shared delete files, and `due`
    counts large and small files with many deleted rows. `scaled` counts small files with many for their size.
    """
    large, few = due[0], min(due[1], small)
    found = Deletes(
        shared=deletes,
        due_files=large + few,
        due_bytes=large * TARGET + few * size,
        due_largest_bytes=TARGET if large else size if few else 0,
        due_small_files=few,
        due_small_bytes=few * size,
        scaled_due_files=max(few, min(scaled, small)),
    )
    count, total = small + 2, small * size + 2 * TARGET
    files = deletes + large + few
    return PartitionFiles(spec, (path,), path, count, total, small, small * size, files, end_us, deletes=found)


def table(partitions: Sequence[PartitionFiles]) -> TableHealth:
    return TableHealth(
        table="demo.flights", at_ms=0, snapshot_id=1, target_file_bytes=TARGET, data_files=0, data_bytes=0, rows=0,
        delete_files=0, manifests=0, manifests_bytes=0, manifest_list_bytes=0, metadata_bytes=0, snapshots=0,
        oldest_snapshot_at_ms=None, last_compaction_at_ms=None, files_since_compaction=0, bytes_since_compaction=0,
        recent=None, streams=(), partitions=partitions,
    )  # fmt: skip


def plan(*partitions: PartitionFiles, settings: Compaction = SETTINGS, before: int | None = 100) -> CompactionPlan:
    return plan_compaction(table(partitions), settings, complete_before_us=before, spec_id=0)


def test_a_partition_whose_folder_spark_cannot_create_is_left_with_the_remedy() -> None:
    long, short = of("city=long"), of("city=short")
    made = plan_compaction(table([long, short]), SETTINGS, complete_before_us=100, spec_id=0, too_long={long.key})
    assert [rewrite.partition for rewrite in made.rewrites] == [short]
    (left,) = made.left
    assert (left.partition, left.kind) == (long, SkipReason.LONG_PATH)
    assert "write.object-storage.partitioned-paths=false" in left.reason


@pytest.mark.parametrize(
    ("location", "properties", "size", "is_long"),
    [
        ("/house/t", {}, 255, False),
        ("file:///house/t", {}, 256, True),
        ("s3://lake/t", {}, 900, False),
        ("s3://lake/t", {}, 930, True),
        ("/house/t", {"write.object-storage.enabled": "true"}, 256, True),
        ("/house/t", {f"write.object-storage.{k}": v for k, v in (("enabled", "true"), ("partitioned-paths", "false"))},
         900, False),
    ],
)  # fmt: skip
def test_a_path_is_too_long_for_a_file_system_or_for_s3(
    location: str, properties: dict[str, str], size: int, is_long: bool
) -> None:
    found = of("x" * size)
    made = SimpleNamespace(location=lambda: location, properties=properties)
    assert find_long_paths(cast("Any", made), [found]) == ({found.key} if is_long else set())


@st.composite
def partitions(draw: st.DrawFn) -> tuple[PartitionFiles, ...]:
    count = draw(st.integers(0, 8))
    return tuple(
        of(
            f"day={n}",
            small=draw(st.integers(0, 60)),
            size=draw(st.integers(1, SMALL)),
            end_us=draw(st.none() | st.integers(0, 200)),
            deletes=draw(st.sampled_from([0, 0, 0, 1, 9])),
            spec=draw(st.sampled_from([0, 0, 0, 1])),
            due=draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 5), (0, 3)])),
            scaled=draw(st.sampled_from([0, 0, 0, 1, 9])),
        )
        for n in range(count)
    )


settings = st.builds(
    Compaction, budget=st.integers(1, 60_000), min_files=st.integers(2, 30), open_files=st.integers(2, 30)
)


def rewritten(partition: PartitionFiles, *, shrinks_to: float) -> PartitionFiles:
    """The partition after a perfect rewrite, if the codec does better with larger files."""
    size = int(partition.small_bytes * shrinks_to)
    full, rest = divmod(size, TARGET)
    left = bool(rest) if rest < 750 else 0
    return dataclasses.replace(
        partition,
        files=2 + full + left,
        small_files=left,
        small_bytes=rest if left else 0,
        delete_files=0,
        deletes=Deletes(),
    )


@given(partitions(), settings)
def test_the_bytes_of_a_run_are_within_the_budget_but_for_one_partition_or_file_with_deleted_rows(found, wanted):
    made = plan(*found, settings=wanted)
    (*_, first) = made.rewrites or (None,)
    alone = len(made.rewrites) == 1 and first is not None
    alone = alone and (first.applies_deletes or (first.files == 1 and first.deleted_percent is not None))
    assert made.bytes <= wanted.budget or alone


@given(partitions(), settings)
def test_complete_partitions_come_first_and_then_the_most_files_for_a_byte(found, wanted):
    made = plan(*found, settings=wanted)
    order = [(not is_complete(r.partition, 100), -removed_files_per_byte(r)) for r in made.rewrites if not r.is_partial]
    assert order == sorted(order)


@given(partitions(), settings)
def test_every_partition_with_small_files_is_rewritten_or_left_with_a_reason(found, wanted):
    made = plan(*found, settings=wanted)
    answered = {r.partition.path for r in made.rewrites} | {left.partition.path for left in made.left}
    assert answered >= {p.path for p in found if p.small_files or p.deletes.due_files}
    assert all(each.reason for each in (*made.rewrites, *made.left))


@given(partitions(), settings, st.sets(st.integers(0, 8)))
def test_busy_partitions_are_compacted_last_in_a_few_pieces_of_one_target_file(found, wanted, numbers):
    busy = {p.key for p in found if p.path in {f"day={n}" for n in numbers}}
    made = plan_compaction(table(found), wanted, complete_before_us=100, spec_id=0, busy=busy)
    is_busy = [r.busy for r in made.rewrites]
    assert is_busy == sorted(is_busy)
    pieces = [r for r in made.rewrites if r.busy]
    actions = group_into_actions(pieces, target=TARGET)
    assert len(actions) <= MAX_BUSY_ACTIONS
    assert all(sum(r.bytes for r in action) <= TARGET for action in actions)
    assert all(r.partition.key in busy for r in pieces)
    assert all(r.busy or r.applies_deletes or r.partition.key not in busy for r in made.rewrites)
    answered = {r.partition.path for r in made.rewrites} | {left.partition.path for left in made.left}
    assert answered >= {p.path for p in found if p.small_files or p.deletes.due_files}


def test_a_single_busy_partition_gets_all_pieces_of_a_run_and_several_get_one_each():
    def pieces(*found: PartitionFiles) -> list[str]:
        wanted = Compaction(budget=10**6)
        busy = {p.key for p in found}
        made = plan_compaction(table(found), wanted, complete_before_us=100, spec_id=0, busy=busy)
        assert all(each.kind is SkipReason.BUSY for each in made.left)
        assert len(made.left) == max(len(found) - MAX_BUSY_ACTIONS, 0)
        return [r.partition.path for r in made.rewrites]

    assert pieces(of("day=1", small=1_000, size=100)) == ["day=1"] * MAX_BUSY_ACTIONS
    assert pieces(of("day=1")) == ["day=1"], "it is no more than one piece"
    assert pieces(*(of(f"day={n}", small=1_000, size=100) for n in range(9))) == [f"day={n}" for n in range(8)]


def test_a_partition_under_merge_without_a_fitting_part_is_skipped_as_busy():
    found = of("day=1", small=8, size=450)
    made = plan_compaction(table([found]), SETTINGS, complete_before_us=100, spec_id=0, busy={found.key})
    ((left,), rewrites) = (made.left, made.rewrites)
    assert not rewrites
    assert left.kind is SkipReason.BUSY
    assert "a rewrite of at most 1,000 bytes might not halve the number of its files" in left.reason
    assert "rewrites of such partitions" not in left.reason


def test_small_busy_partitions_share_compaction_actions_of_an_eighth_of_the_target_size():
    found = [of(f"day={n:02}", size=2) for n in range(20)]
    busy = {p.key for p in found}
    made = plan_compaction(table(found), SETTINGS, complete_before_us=100, spec_id=0, busy=busy)
    assert not made.left
    assert [len(action) for action in group_into_actions(made.rewrites, target=TARGET)] == [6, 6, 6, 2]
    assert len(found) > 2 * MAX_BUSY_ACTIONS


def test_compaction_groups_rewrites_of_one_kind_and_runs_each_partial_rewrite_alone():
    found = [of(f"day={n}", due=(1, 0) if n % 2 else (0, 0)) for n in range(2 * MAX_PARTITIONS_PER_ACTION + 2)]
    whole = plan(*found, settings=Compaction(budget=10**9)).rewrites
    (part,) = plan(of("day=0", small=1_000, size=100)).rewrites
    actions = group_into_actions([*whole, part, part], target=TARGET)
    assert sorted(map(len, actions)) == [1, 1, 1, 1, MAX_PARTITIONS_PER_ACTION, MAX_PARTITIONS_PER_ACTION]
    assert all(len({r.kind for r in action}) == 1 for action in actions)


def test_a_partial_rewrite_of_a_partition_under_merge_waits_for_the_other_rewrites():
    found = of("day=1", small=0, due=(2, 0)), of("day=2", small=40)
    busy = {found[0].key}
    made = plan_compaction(table(found), Compaction(budget=10**6), complete_before_us=100, spec_id=0, busy=busy)
    assert [(r.partition.path, r.busy) for r in made.rewrites] == [("day=2", False), ("day=1", True), ("day=1", True)]


@given(partitions(), settings, st.floats(0.3, 1))
def test_a_compacted_partition_is_not_compacted_again(found, wanted, shrinks_to):
    everything = wanted.model_copy(update={"budget": 10**9})
    chosen = {r.partition.path for r in plan(*found, settings=everything).rewrites}
    after = [rewritten(p, shrinks_to=shrinks_to) if p.path in chosen else p for p in found]
    assert not plan(*after, settings=everything).rewrites


@given(partitions(), settings)
def test_repeated_runs_rewrite_everything_worthwhile_if_a_run_may_write_two_files(found, wanted):
    wanted = wanted.model_copy(update={"budget": max(wanted.budget, 2 * TARGET)})
    for _ in range(1_000):
        made = plan(*found, settings=wanted)
        if not made.rewrites:
            break
        taken = {r.partition.path: r for r in made.rewrites}
        found = [_after(p, taken[p.path]) if p.path in taken else p for p in found]
    last = plan(*found, settings=wanted)
    assert all(left.kind is not SkipReason.BUDGET for left in last.left)
    for left in (left for left in last.left if "any run's budget" in left.reason):
        assert 2 * left.partition.small_bytes > left.partition.small_files * TARGET * 3 // 4


def _after(partition: PartitionFiles, rewrite) -> PartitionFiles:
    if rewrite.largest_bytes is not None:
        return _without_due(partition, rewrite.files)
    if not rewrite.small:
        return _without_due(partition, partition.deletes.due_files)
    if not rewrite.is_partial:
        return rewritten(partition, shrinks_to=1)
    rest = rewrite.bytes % TARGET
    small = partition.small_files - rewrite.files + (0 < rest < 750)
    size = max(partition.small_bytes - rewrite.bytes, 0) + (rest if rest < 750 else 0)
    scaled = min(partition.deletes.scaled_due_files, small)
    deletes = dataclasses.replace(partition.deletes, scaled_due_files=scaled)
    return dataclasses.replace(partition, small_files=small, small_bytes=size, deletes=deletes)


def _without_due(partition: PartitionFiles, files: int) -> PartitionFiles:
    """After that many of its files with many deleted rows were written again: the largest first, each as it was."""
    due = partition.deletes
    large = max(due.due_files - due.due_small_files - files, 0)
    few = min(due.due_files - files, due.due_small_files)
    size = due.due_small_bytes // due.due_small_files if due.due_small_files else 0
    return of(
        partition.path,
        small=partition.small_files,
        size=partition.small_bytes // max(partition.small_files, 1),
        end_us=partition.window_end_us,
        due=(large, few if size else 0),
        scaled=due.scaled_due_files - (due.due_small_files - few),
    )


@pytest.mark.parametrize(
    ("end_us", "before", "small", "worth"),
    [
        (1, 100, 5, True),
        (1, 100, 4, False),
        (101, 100, 19, False),
        (101, 100, 20, True),
        (1, None, 19, False),
        (1, None, 20, True),
        (None, 100, 19, False),
        (None, 100, 20, True),
    ],
)
def test_a_partition_that_may_still_be_written_needs_more_small_files_for_a_rewrite(end_us, before, small, worth):
    made = plan(of(small=small, end_us=end_us), before=before)
    assert bool(made.rewrites) is worth
    assert worth or made.left[0].kind is SkipReason.TOO_FEW_FILES


def test_files_are_left_if_compaction_would_not_halve_their_number():
    made = plan(of(small=10, size=600))
    assert not made.rewrites
    assert made.left[0].kind is SkipReason.MARGINAL
    assert plan(of(small=10, size=500)).rewrites[0].removed == 5


def test_files_with_many_deleted_rows_are_rewritten_and_no_small_ones_that_are_not_worth_it():
    (one,) = plan(of(small=1, due=(2, 1)), settings=SETTINGS).rewrites
    assert (one.files, one.bytes, one.small, one.deleted_percent, one.is_partial) == (3, 2_010, False, 20, False)
    assert one.reason == "20 % or more of the rows of 3 files are deleted"
    (same,) = plan(of(small=3, due=(2, 0)), settings=SETTINGS).rewrites
    assert (same.files, same.small, same.all_deletes) == (2, False, False)
    (both,) = plan(of(small=10, due=(1, 0)), settings=SETTINGS).rewrites
    assert (both.files, both.bytes, both.small, both.deleted_percent) == (11, 1_100, True, 20)
    assert both.reason.startswith("it is complete: 10 small files become 1; 20 %")


def test_no_part_is_planned_of_small_files_that_are_too_large_to_be_halved():
    found = of("day=1", small=12, size=542, scaled=1), of("day=2", small=2, size=1)
    made = plan(*found, settings=SETTINGS.model_copy(update={"budget": 2 * TARGET, "min_files": 2}))
    assert [(one.partition.path, one.files) for one in made.rewrites] == [("day=2", 2)]
    assert [(one.partition.path, one.kind) for one in made.left] == [("day=1", SkipReason.MARGINAL)]


def test_small_files_with_a_smaller_share_of_deleted_rows_are_rewritten_with_all_other_small_ones():
    found = of(small=3, scaled=2)
    (one,) = plan(found).rewrites
    assert (one.files, one.bytes, one.small, one.deleted_percent, one.all_deletes) == (3, 30, True, None, False)
    assert one.reason == "rows of 2 of 3 small files are deleted"
    assert one.removed == 4, "two data files, and the delete files of two"
    assert plan(of(small=1, scaled=1)).left[0].kind is SkipReason.TOO_FEW_FILES, "Iceberg would not find it"
    without_large = dataclasses.replace(found, files=3, bytes=30)
    assert plan(without_large).rewrites[0].all_deletes
    single = dataclasses.replace(of(small=1, scaled=1), files=1, bytes=10)
    (one,) = plan(single).rewrites
    assert (one.files, one.all_deletes) == (1, True)
    (both,) = plan(of(small=3, due=(1, 1))).rewrites
    assert (both.files, both.bytes, both.small, both.deleted_percent) == (4, 1_030, True, 20)


def test_as_many_files_are_rewritten_as_the_budget_allows_and_at_least_one():
    found = of(small=0, due=(2, 0))
    (part,) = plan(found, settings=Compaction(budget=1_500)).rewrites
    assert (part.files, part.bytes, part.is_partial, part.largest_bytes) == (1, 1_000, True, 1_000)
    (alone,) = plan(found, settings=Compaction(budget=10)).rewrites
    assert (alone.files, alone.bytes) == (1, 1_000)


def test_a_delete_file_for_one_data_file_with_few_deleted_rows_is_kept():
    found = dataclasses.replace(of(small=0), delete_files=2, deletes=Deletes(bytes=20, rows=5))
    assert plan(found).rewrites == plan(found).left == ()


def test_delete_files_whose_data_files_are_gone_are_dropped():
    found = dataclasses.replace(of(small=0), delete_files=2, deletes=Deletes(dangling=("a", "b")))
    assert plan(found, of(small=0)).dangling == ("a", "b")


def test_shared_delete_files_are_worth_a_rewrite_from_one_for_ten_files_on():
    assert not plan(of(small=0, deletes=0)).rewrites
    (one,) = plan(of(small=9, deletes=2, end_us=None)).rewrites
    assert one.applies_deletes
    assert (one.files, one.bytes) == (11, 2_090)
    assert one.reason == "every reader applies 2 delete files to 11 files"
    assert plan(of(small=9, deletes=2, end_us=None)).sentence == (
        "a rewrite of 11 data files (2,090 bytes) in 1 partition removes 10 data or delete files"
    )
    assert not plan(of(small=9, deletes=1)).rewrites[0].applies_deletes


def test_shared_delete_files_without_any_data_file_are_no_reason_for_a_rewrite():
    empty = PartitionFiles(0, ("day=1",), "day=1", 0, 0, 0, 0, 3, 1, deletes=Deletes(shared=3))
    assert plan(empty).rewrites == plan(empty).left == ()


def test_a_partition_beyond_the_budget_is_rewritten_in_parts_and_none_is_preferred_to_it():
    big, next_best = of("day=1", small=1_000, size=100), of("day=2", small=5, size=300)
    made = plan(big, next_best, settings=SETTINGS)
    assert [(r.partition.path, r.files, r.is_partial) for r in made.rewrites] == [("day=1", 100, True)]
    assert [(left.partition.path, left.kind) for left in made.left] == [("day=2", SkipReason.BUDGET)]
    assert (
        made.sentence == "a rewrite of 100 data files (10,000 bytes) in 1 partition removes 90 files; "
        "partitions not rewritten: 1 (beyond the budget)"
    )


@given(st.lists(st.integers(1, SMALL), min_size=2, max_size=300), st.integers(TARGET, 60_000))
def test_a_partial_rewrite_takes_existing_files_within_the_budget_and_halves_their_number(sizes, budget):
    found = dataclasses.replace(of(small=len(sizes)), small_bytes=sum(sizes))
    for rewrite in plan(found, settings=Compaction(budget=budget, min_files=2, open_files=2)).rewrites:
        if rewrite.below_bytes is None:
            assert rewrite.bytes <= budget
            continue
        eligible = sorted((size for size in sizes if size < rewrite.below_bytes), reverse=True)
        assert len(eligible) >= rewrite.files >= 2
        worst = sum(eligible[: rewrite.files])
        assert worst <= budget
        assert 2 * -(-worst // TARGET) <= rewrite.files


def test_a_partition_that_never_fits_does_not_block_other_partitions():
    first, never, other = of("day=0"), of("day=1", small=60, size=500), of("day=2", small=10, size=500)
    made = plan(first, never, other, settings=SETTINGS)
    assert [r.partition.path for r in made.rewrites] == ["day=0", "day=2"]
    assert [left.kind for left in made.left] == [SkipReason.MARGINAL]


def at(path: str, begin_us: int | None, end_us: int | None, *, spec: int = 0, small: int = 10) -> PartitionFiles:
    return dataclasses.replace(of(path, small=small, size=100, spec=spec, end_us=end_us), window_begin_us=begin_us)


def test_small_files_of_an_older_spec_count_once_against_the_compaction_budget():
    old, days = at("month=1", 0, 30, spec=3, small=50), [at(f"day={n}", n, n + 1) for n in (28, 29, 30)]
    made = plan(old, *days, settings=SETTINGS)
    assert [(r.partition.path, r.old_spec_files, r.old_spec_bytes) for r in made.rewrites] == [
        ("day=28", 50, 5_000), ("day=29", 0, 0), ("day=30", 0, 0),
    ]  # fmt: skip
    assert made.rewrites[0].reason.endswith("with up to 50 small files of older specs")
    assert sum(r.bytes + r.old_spec_bytes for r in made.rewrites) <= SETTINGS.budget


def test_a_partition_is_not_rewritten_if_overlapping_files_of_an_older_spec_exceed_the_budget():
    old, day, later = at("", None, None, spec=3, small=500), at("day=1", 1, 2), at("day=40", 40, 41)
    assert [left.kind for left in plan(old, day).left] == [SkipReason.OLD_SPEC, SkipReason.OVERLAP]
    made = plan(dataclasses.replace(old, window_begin_us=0, window_end_us=31), day, later)
    assert [r.partition.path for r in made.rewrites] == ["day=40"]


@pytest.mark.parametrize(("small", "old_files"), [(3, 0), (1, 2)])
def test_large_files_of_an_older_spec_are_rewritten_only_with_one_small_file_with_deletes(small: int, old_files: int):
    old = dataclasses.replace(at("month=1", 0, 30, spec=3, small=0), delete_files=2)
    day = dataclasses.replace(at("day=28", 28, 29, small=small), files=small, deletes=Deletes(scaled_due_files=1))
    (one,) = plan(old, day).rewrites
    counted = (one.all_deletes, one.old_spec_files, one.old_spec_bytes)
    assert counted == (old_files > 0, old_files, old_files * TARGET)


def test_partitions_of_a_former_spec_are_not_compacted():
    made = plan(of(spec=3))
    assert [left.reason for left in made.left] == [
        "its partition spec 3 is not the table's current one: rewrite it by hand"
    ]
