"""The snapshots that expire and those that stay, decided from fake metadata."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import LongType, NestedField

from frazil.commit.backfill_records import BackfillMarker, BackfillState
from frazil.commit.expiry import ExpiryPlan, Pins, expirable_by_writers, plan_expiry
from frazil.commit.marker import first_marker
from frazil.maintenance.plans import find_missing_defaults
from frazil.offsets.spans import SourceIdentity
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain
from frazil.spec.maintenance import Expiry

MINUTE = 60_000
HOUR_US = Grain.HOUR.us
NOW = 100_000 * MINUTE
SETTINGS = Expiry(keep=timedelta(minutes=10), at_least=3, at_most=8)


def snapshot(number: int, *, at: int, parent: int | None, **summary: str) -> Snapshot:
    """Its id is 1000 + its sequence number; `at` is in minutes before now."""
    said = {key.replace("_", "-").replace("frazil-", "frazil."): text for key, text in summary.items()}
    return Snapshot(
        snapshot_id=1_000 + number,
        parent_snapshot_id=parent,
        sequence_number=number,
        timestamp_ms=NOW - at * MINUTE,
        manifest_list=f"file:///{number}.avro",
        summary=Summary(**{"operation": Operation.APPEND, **said}),
        schema_id=0,
    )


def line(count: int, *, every: int = 1, said: Mapping[int, Mapping[str, str]] | None = None) -> list[Snapshot]:
    """Main's snapshots 1 to `count`, that many minutes apart, the last one now."""
    return [
        snapshot(n, at=(count - n) * every, parent=999 + n if n > 1 else None, **(said or {}).get(n, {}))
        for n in range(1, count + 1)
    ]


def metadata(
    snapshots: list[Snapshot],
    *,
    refs: Mapping[str, Any] | None = None,
    properties: Mapping[str, str] | None = None,
    head: int | None = None,
) -> TableMetadataV2:
    """`head` is main's, by sequence number; refs are `{name: number}`, or a mapping as Iceberg writes it."""
    main = {"main": {"type": "branch", "snapshot-id": 1_000 + (head or len(snapshots))}} if snapshots else {}
    others = {
        name: {"type": "tag", "snapshot-id": 1_000 + ref} if isinstance(ref, int) else ref
        for name, ref in (refs or {}).items()
    }
    return TableMetadataV2(
        location="file:///t",
        last_column_id=1,
        schemas=[Schema(NestedField(1, "id", LongType()))],
        partition_specs=[PartitionSpec()],
        sort_orders=[SortOrder(order_id=0)],
        last_sequence_number=max((s.sequence_number or 0 for s in snapshots), default=0),
        snapshots=snapshots,
        refs=main | others,
        properties=dict(properties or {}),
    )


def branch(number: int, **retention: int) -> dict[str, Any]:
    return {"type": "branch", "snapshot-id": 1_000 + number, **{k.replace("_", "-"): v for k, v in retention.items()}}


def marker(stream: str, number: int, *, open_at: int | None = None) -> dict[str, str]:
    made = first_marker(stream, epoch=1, offsets={}, source=SourceIdentity("c", {})).with_snapshots(
        1_000 + number, number, open_snapshot_id=open_at and 1_000 + open_at
    )
    return {made.property_name: made.to_property()}


def plan(
    found: TableMetadataV2, *, settings: Expiry = SETTINGS, unread_after: int | None = None, **pins: Any
) -> ExpiryPlan:
    """The signals, where there are any, cover the hours of [0, 2), and the commits up to `unread_after`."""
    cursor = None if unread_after is None else Cursor(Grain.HOUR, 0, 2 * HOUR_US, unread_after)
    return plan_expiry(found, settings, Pins(cursor, **pins), table="demo.flights", now_ms=NOW)


def expired_numbers(made: ExpiryPlan) -> list[int]:
    return sorted(found - 1_000 for found in made.expire)


def test_a_snapshot_is_kept_while_readers_that_started_when_it_was_current_may_still_read_it():
    made = plan(metadata(line(10, every=5)))
    assert expired_numbers(made) == [1, 2, 3, 4, 5, 6], "the seventh was the head until ten minutes ago"
    assert not made.retained_reasons
    assert made.sentence == "6 snapshots expire. Kept: the newest 4 of branch main, by maintenance.expiry"


def test_the_newest_snapshots_of_a_seldom_written_table_are_kept_however_old_they_are():
    assert expired_numbers(plan(metadata(line(4, every=10_000)))) == [1]
    assert expired_numbers(plan(metadata(line(3, every=10_000)))) == []
    assert plan(metadata([])).sentence == (
        "no snapshot is old enough to expire. Kept: the newest 0 of branch main, by maintenance.expiry"
    )


def test_a_continuously_written_table_keeps_at_most_the_maximum_number_of_snapshots():
    snapshots = [snapshot(n, at=0, parent=999 + n if n > 1 else None) for n in range(1, 21)]
    assert expired_numbers(plan(metadata(snapshots))) == list(range(1, 13))


@pytest.mark.parametrize(
    ("state", "hours", "left"),
    [
        (BackfillState.STAGED, 0, list(range(1, 19))),
        (BackfillState.STAGING, 0, list(range(1, 19))),
        (BackfillState.STAGED, 25, [*range(1, 20), *range(21, 53)]),
        (BackfillState.PUBLISHED, 0, [*range(1, 20), *range(21, 53)]),
    ],
)
def test_snapshots_of_a_backfills_audit_are_kept_until_it_is_published_or_idle_for_a_day(
    state: BackfillState, hours: int, left: list[int]
):
    snapshots = line(60)
    backfill = snapshot(20, at=40 + hours * 60, parent=None)
    snapshots[19:21] = [backfill, snapshot(21, at=39, parent=1_019)]
    found = metadata(
        snapshots,
        refs={"frazil-backfill-s": branch(20)},
        properties={"frazil.backfill.s": BackfillMarker("s", "b", {}, "d", 1, state).to_property()},
    )
    assert expired_numbers(plan(found)) == left, "neither `keep` nor `at-most` cuts what the publication walks back"


def test_expiry_keeps_everything_if_main_was_truncated_after_a_backfill_began():
    snapshots = [snapshot(1, at=40, parent=None), *line(20)[1:]]
    found = metadata(
        snapshots,
        refs={"frazil-backfill-s": branch(1)},
        properties={"frazil.backfill.s": BackfillMarker("s", "b", {}, "d", 1, BackfillState.STAGED).to_property()},
    )
    assert expired_numbers(plan(found)) == []


def test_losses_and_backfill_counts_are_kept_for_as_long_as_an_hourly_audit_may_need_them():
    said = {1: {"frazil_lost": "e-0 offsets 1 to 2"}, 3: {"frazil_backfill_stream": "s"}, 4: {"frazil_stream": "s"}}
    made = plan(metadata(line(20, every=20, said=said)))
    assert expired_numbers(made) == [1, 2, *range(4, 18)], "six hours and more have passed since the first"
    assert made.retained_reasons == {1_003: "the audit of its hour needs its numbers of backfilled or skipped records"}


def test_the_last_commit_of_an_inactive_stream_is_kept_although_snapshots_around_it_expire():
    made = plan(metadata(line(20), properties=marker("old", 2) | marker("new", 20)))
    assert expired_numbers(made) == [1, *range(3, 13)]
    assert made.retained_reasons == {1_002: "it is the last commit of stream 'old'"}


def test_expiry_keeps_all_snapshots_after_a_reader_tag_and_only_the_snapshot_of_other_tags():
    made = plan(metadata(line(20), refs={"frazil-reader-copy": 4, "release": 2}))
    assert expired_numbers(made) == [1, 3]
    assert made.retained_reasons[1_004] == "tag frazil-reader-copy refers to it"
    assert made.retained_reasons[1_002] == "tag release refers to it"
    assert made.sentence == (
        "2 snapshots expire. Kept: the newest 8 of branch main, by maintenance.expiry, and 10 others: an older "
        "snapshot must be kept (8), tag frazil-reader-copy refers to it (1), tag release refers to it (1)"
    )


def test_commits_whose_late_rows_or_dead_letters_are_not_signalled_are_kept_for_a_week():
    quiet = {n: {"frazil_windows": f'{{"{2 * HOUR_US}":9}}', "added_records": "9"} for n in range(1, 21)}
    said = quiet | {
        3: {"frazil_windows": f'{{"0":1,"{2 * HOUR_US}":9}}'},
        5: {"frazil_rejected": "7"},
        6: {"frazil_rejected": "0"},
    }
    found = metadata(line(20, said=said))
    assert expired_numbers(plan(found, unread_after=2)) == [1, 2]
    assert expired_numbers(plan(found, unread_after=3)) == [1, 2, 3, 4]
    assert expired_numbers(plan(found, unread_after=5)) == list(range(1, 13))
    weeks = metadata(line(20, every=1_440, said=said))
    made = plan(weeks, unread_after=2)
    assert expired_numbers(made) == list(range(1, 18))
    assert made.sentence.endswith(
        "No signal will ever count the late rows and dead letters of 2 commits older than 7 days: find out "
        "what holds the watermark back"
    )


def test_snapshots_that_recent_signals_name_are_kept():
    made = plan(metadata(line(20)), signalled_snapshots=frozenset({1_007, 1_018, 4711}))
    assert expired_numbers(made) == [n for n in range(1, 13) if n != 7]
    assert made.retained_reasons == {1_007: "a signal refers to it"}


def test_expiry_of_the_open_branch_keeps_its_head_and_snapshots_that_kept_main_snapshots_need():
    main = [
        snapshot(n, at=60 - n, parent=998 + n if n > 1 else None, frazil_open_snapshot_id=str(1_001 + n))
        for n in range(1, 40, 2)
    ]
    waiting = [snapshot(n, at=60 - n, parent=998 + n if n > 2 else None) for n in range(2, 41, 2)]
    found = metadata(
        [*main, *waiting],
        head=39,
        refs={"frazil-open-s": branch(40, max_ref_age_ms=2**63 - 1)},
        properties=marker("s", 39, open_at=40),
    )
    made = plan(found)
    assert expired_numbers(made) == list(range(1, 35)), "three of main, and the three of the branch that belong to them"
    assert made.retained_reasons[1_040] == "branch frazil-open-s refers to it"


def test_recent_snapshots_of_the_open_branch_expire_with_their_snapshots_of_main():
    main = [
        snapshot(n, at=0, parent=998 + n if n > 1 else None, frazil_open_snapshot_id=str(1_001 + n))
        for n in range(1, 40, 2)
    ]
    waiting = [snapshot(n, at=0, parent=998 + n if n > 2 else None) for n in range(2, 41, 2)]
    found = metadata(
        [*main, *waiting],
        head=39,
        refs={"frazil-open-s": branch(40), "here": 3},
        properties=marker("s", 39, open_at=40),
    )
    made = plan(found)
    assert expired_numbers(made) == [1, 2, *range(5, 25)]
    assert made.retained_reasons[1_004] == "a kept snapshot of main refers to it"


def test_expiry_keeps_all_snapshots_of_a_foreign_branch_and_applies_the_settings_to_main():
    forked = [snapshot(21, at=500, parent=1_004), snapshot(22, at=400, parent=1_021)]
    found = [*line(20), *forked]
    assert expired_numbers(plan(metadata(found, head=20, refs={"audit": branch(22)}))) == list(range(1, 13))
    kept = metadata(found, head=20, refs={"audit": branch(22, min_snapshots_to_keep=4)})
    assert expired_numbers(plan(kept)) == [1, 2, *range(5, 13)]


def test_snapshots_that_no_reference_reaches_go_when_they_are_old():
    rolled_back = [snapshot(21, at=11, parent=1_020), snapshot(22, at=9, parent=1_021)]
    assert 21 in expired_numbers(plan(metadata([*line(20), *rolled_back], head=20)))
    assert 22 not in expired_numbers(plan(metadata([*line(20), *rolled_back], head=20)))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (
            metadata(line(20), head=15, properties=marker("gone", 18)),
            "rolled back to before the last commit of stream 'gone'",
        ),
        (metadata(line(20), properties=marker("s", 19, open_at=5)), "another engine or user moved or dropped it"),
        (metadata(line(20), properties={"frazil.stream.s": "{}"}), "is not a marker"),
        (metadata(line(20), properties={"frazil.backfill.s": "{}"}), "is not a backfill marker"),
        (metadata(line(20), properties={"gc.enabled": "false"}), "another table may share its files"),
        (metadata(line(20), refs={"main": branch(20, min_snapshots_to_keep=1)}), "its own retention"),
    ],
)
def test_expiry_is_refused_while_the_table_has_a_problem_or_others_manage_its_files(found, why):
    made = plan(found)
    assert made.refused
    assert not made.expire
    assert why in made.sentence


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=30),
    st.sets(st.integers(1, 30)),
    st.sets(st.integers(1, 30)),
    st.integers(0, 30),
)
def test_expiry_keeps_main_as_one_line_from_its_head_and_every_snapshot_with_a_reference(
    ages, tags, streams, unread_after
):
    total = len(ages)
    ages.sort(reverse=True)
    said = {"frazil_windows": '{"0":1}'}
    snapshots = [snapshot(n, at=age, parent=999 + n if n > 1 else None, **said) for n, age in enumerate(ages, 1)]
    tags, streams = {t for t in tags if t <= total}, {s for s in streams if s <= total}
    properties = {key: text for n in streams for key, text in marker(f"s{n}", n).items()}
    found = metadata(snapshots, refs={f"t{n}": n for n in tags}, properties=properties)
    made = plan(found, unread_after=unread_after)
    left = set(range(1, total + 1)) - set(expired_numbers(made))
    assert left >= tags | streams | {total} | set(range(unread_after + 1, total + 1))
    first = min(n for n in range(1, total + 1) if set(range(n, total + 1)) <= left)
    assert left - set(range(first, total + 1)) <= tags | streams, "nothing else stays out of the line"
    rest = [s for s in snapshots if s.snapshot_id not in made.expire]
    again = metadata(rest, head=total, refs={f"t{n}": n for n in tags}, properties=properties)
    assert not plan(again, unread_after=unread_after).expire


def test_a_commit_with_unknown_windows_is_kept_until_it_is_signalled():
    found = metadata(
        line(20, said={3: {"added_records": "1"}, 2: {"added_records": "1", "operation": Operation.REPLACE}})
    )
    assert expired_numbers(plan(found, unread_after=1)) == [1, 2]


def test_default_metadata_properties_are_set_only_if_unset():
    assert set(find_missing_defaults(metadata([]))) == {
        "write.metadata.delete-after-commit.enabled",
        "write.metadata.previous-versions-max",
    }
    mine = {"write.metadata.delete-after-commit.enabled": "false"}
    assert find_missing_defaults(metadata([], properties=mine)) == {"write.metadata.previous-versions-max": "100"}


@given(
    st.lists(st.sampled_from(["append", "merge", "delete", "replace", "fold", "foreign"]), min_size=1, max_size=40),
    st.sets(st.integers(1, 40)),
    st.sets(st.integers(1, 40)),
    st.integers(0, 40),
)
def test_writers_expire_only_planned_snapshots_and_lose_track_of_no_data_file(kinds, tags, streams, unread_after):
    """Each snapshot adds a file. Some also remove the oldest one, which Iceberg then finds only by a snapshot."""
    said: dict[int, dict[str, str]] = {}
    live: list[set[int]] = [set()]
    for number, kind in enumerate(kinds, 1):
        removes = kind in {"delete", "replace", "fold"} and live[-1]
        live.append((live[-1] - {min(live[-1])} if removes else live[-1]) | {number})
        operation = {"append": "append", "replace": "replace", "fold": "replace"}.get(kind, "overwrite")
        said[number] = {"operation": operation, "frazil_windows": '{"0":1}'}
        said[number] |= {"deleted_data_files": "1"} if removes else {}
        said[number] |= {"foreign": {}, "fold": {"frazil_operation": "fold"}}.get(kind, {"frazil_stream": "s"})
    total = len(kinds)
    tags, streams = {t for t in tags if t <= total}, {s for s in streams if s <= total}
    properties = {key: text for n in streams for key, text in marker(f"s{n}", n).items()}
    found = metadata(line(total, said=said), refs={f"t{n}": n for n in tags}, properties=properties)
    made = plan(found, unread_after=unread_after)
    expired = {s.sequence_number for s in expirable_by_writers(made, found)}
    assert expired <= set(expired_numbers(made))
    left = [number for number in range(1, total + 1) if number not in expired]
    assert set().union(*live) == set().union(*(live[number] for number in left))
