"""One table as the page shows it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Snapshot, Summary

import frazil
from frazil.commit.marked_update import ALIGN_OPERATION
from frazil.maintenance.due import Action, DueCheck
from frazil.maintenance.health import TableHealth
from frazil.maintenance.outcomes import Ending, PastOutcome
from frazil.operations.calendar import Calendar, Cell
from frazil.operations.overview import ActiveAlert, Health, combine_health
from frazil.operations.table_view import (
    MARKER_OPERATIONS,
    MAX_LOST_CHARACTERS,
    MAX_PAST_RUNS,
    MAX_SNAPSHOTS,
    build_histogram,
    build_shape,
    build_timeline,
    route_problems,
    table_health,
)
from frazil.spec.maintenance import Maintenance
from frazil.status.state import Level


def snapshot(n: int, operation: str = "append", parent: int | None = None, **summary: str) -> Snapshot:
    reported = {name.replace("__", ".").replace("_", "-"): value for name, value in summary.items()}
    return Snapshot(
        **{"snapshot-id": n, "parent-snapshot-id": parent, "sequence-number": n, "timestamp-ms": n * 1000},
        manifest_list=f"m{n}",
        summary=Summary(operation, **reported),
    )


def metadata(*snapshots: Snapshot) -> Any:
    head = snapshots[-1] if snapshots else None
    return SimpleNamespace(
        snapshots=list(snapshots),
        snapshot_by_name=lambda _: head,
        snapshot_by_id=lambda n: next((s for s in snapshots if s.snapshot_id == n), None),
        refs={"main": SimpleNamespace(snapshot_id=head.snapshot_id)} if head else {},
        current_snapshot_id=head.snapshot_id if head else None,
    )


BATCH = {"frazil__stream": "ticks", "frazil__commit_record": "r", "frazil__records": "12", "added_data_files": "2"}


@pytest.mark.parametrize(
    ("made", "kind", "stream", "said"),
    [
        (snapshot(1, **BATCH), "batch", "ticks", "12 records"),
        (snapshot(1, "overwrite", **BATCH, frazil__inserted="3"), "merge", "ticks", "12 changes"),
        (snapshot(1, frazil__backfill_stream="ticks"), "backfill", "ticks", "0 files added, 0 removed"),
        (snapshot(1, frazil__backfill_stream="ticks", frazil__operation="replay"), "dead-letters", "ticks", "replayed"),
        (snapshot(1, "replace", added_data_files="1", deleted_data_files="9"), "compaction", None, "9 files became 1"),
        (snapshot(1, "replace", frazil__operation="fold", added_data_files="1", deleted_data_files="8"),
         "fold", None, "8 files became 1"),
        (snapshot(1, "replace", frazil__operation="manifests"), "manifests", None, "0 files added, 0 removed"),
        (snapshot(1, "replace"), "manifests", None, "0 files added, 0 removed"),
        (snapshot(1, added_data_files="nonsense"), "others", None, "0 files added, 0 removed"),
    ],
)  # fmt: skip
def test_a_snapshot_is_shown_with_the_operation_that_created_it(
    made: Snapshot, kind: str, stream: str | None, said: str
):
    (mark,) = build_timeline(metadata(made))
    assert (mark.kind, mark.stream, mark.message) == (kind, stream, said)


@pytest.mark.parametrize(
    ("operation", "kind", "label", "said"),
    [
        ("take-over", "start", "writer started", "a new epoch"),
        ("follow", "start", "table joined", "receives rows from the stream's next batch on"),
        ("reset", "position", "offsets reset", "the stream continues from other offsets"),
        ("adopt", "position", "table adopted", "the stream appends to the existing rows"),
        ("forget", "position", "stream forgotten", "its marker was removed"),
        ("give-up", "position", "rows given up", "the table continues without its pending rows"),
        ("align", "open", "open windows", "4 files added, 0 removed"),
        ("release", "open", "rows moved to main", "4 files added, 0 removed"),
        ("of-a-later-version", "position", "marker changed", "of-a-later-version"),
    ],
)
def test_marker_changes_without_a_batch_are_labelled_by_their_operation(
    operation: str, kind: str, label: str, said: str
):
    made = snapshot(1, frazil__stream="ticks", frazil__operation=operation, added_data_files="4")
    (mark,) = build_timeline(metadata(made))
    assert (mark.kind, mark.label, mark.stream, mark.message) == (kind, label, "ticks", said)


def test_a_skipped_gap_lists_the_lost_offsets_up_to_a_limit():
    lost = "; ".join(f"ticks-{n} offsets 0 to 99" for n in range(90))
    (mark,) = build_timeline(metadata(snapshot(1, frazil__stream="t", frazil__operation="skip-gap", frazil__lost=lost)))
    assert (mark.label, mark.kind) == ("gap skipped", "position")
    assert mark.message.startswith("Kafka deleted unread records: ticks-0 offsets 0 to 99; ticks-1")
    assert len(mark.message) < 2 * MAX_LOST_CHARACTERS


def test_each_operation_that_writes_a_marker_alone_has_a_label():
    code = "\n".join(file.read_text() for file in (Path(frazil.__file__).parent / "commit").glob("*.py"))
    written = set(re.findall(r'operation(?:": |=)"([a-z-]+)"', code)) | {ALIGN_OPERATION}
    assert {"reset", "skip-gap"} < written == set(MARKER_OPERATIONS)


def test_only_the_newest_of_very_many_snapshots_are_shown():
    marks = build_timeline(metadata(*(snapshot(n) for n in range(1, MAX_SNAPSHOTS + 11))))
    assert (len(marks), marks[0].at_ms, marks[-1].at_ms) == (MAX_SNAPSHOTS, 11_000, (MAX_SNAPSHOTS + 10) * 1000)


@given(st.lists(st.integers(0, 2**34), max_size=60))
def test_each_file_is_in_exactly_one_bucket(sizes: list[int]):
    buckets = build_histogram(sizes)
    assert sum(bucket.files for bucket in buckets) == len(sizes)
    assert sum(bucket.bytes for bucket in buckets) == sum(sizes)
    for bucket in buckets:
        assert bucket.files == sum(bucket.at_least <= size < bucket.below for size in sizes)
    assert all(one.below == other.at_least for one, other in pairwise(buckets))


def health(**changes: Any) -> TableHealth:
    values: dict[str, Any] = {
        "table": "demo.ticks", "at_ms": 0, "snapshot_id": 1, "target_file_bytes": 2**29, "data_files": 600,
        "data_bytes": 10, "rows": 3, "delete_files": 0, "manifests": 4, "manifests_bytes": 1,
        "manifest_list_bytes": 1_228_800, "metadata_bytes": 9, "snapshots": 2, "oldest_snapshot_at_ms": 0,
        "last_compaction_at_ms": None, "files_since_compaction": 0, "bytes_since_compaction": 0, "recent": None,
        "streams": (),
    }  # fmt: skip
    return TableHealth(**{**values, **changes})


def outcome(at_ms: int, action: str = "expiry", ending: Ending = Ending.DONE) -> PastOutcome:
    return PastOutcome(at_ms, action, ending, "why", {"snapshots-expired": 1200})


def test_the_timeline_has_the_expiries_since_its_first_snapshot():
    past = [outcome(1), outcome(2_500), outcome(2_600, "orphans"), outcome(2_700, ending=Ending.FAILED)]
    marks = build_timeline(metadata(snapshot(2), snapshot(3)), past)
    assert [(mark.at_ms, mark.kind) for mark in marks] == [(2_000, "others"), (2_500, "expiry"), (3_000, "others")]
    assert marks[1].message == "1,200 snapshots expired"


def test_the_table_view_shows_manifest_list_bytes_as_the_alert_does_and_newest_actions_first():
    settings, past = Maintenance(), [outcome(n) for n in range(MAX_PAST_RUNS + 2)]
    due = {Action.EXPIRY: DueCheck(True, "why")}
    shape = build_shape(metadata(snapshot(1)), health(), due, sizes=[5], past=past, settings=settings)
    assert (shape.list_bytes_per_file, shape.limit) == (2048, 1024)
    assert [one.at_ms for one in shape.past] == list(range(MAX_PAST_RUNS + 1, 1, -1))
    assert [(a.name, a.due, a.enabled, a.reason) for a in shape.actions] == [("expiry", True, True, "why")]
    small = build_shape(
        metadata(), health(data_files=1, manifest_list_bytes=4096), {}, sizes=[], past=(), settings=settings
    )
    assert small.list_bytes_per_file == 16  # a small table's list is one small read


def test_a_table_needs_attention_for_an_alert_or_a_held_window():
    held = Calendar("hour", (Cell("k", "held"),), "")
    alert = ActiveAlert("demo.ticks", "manifests", 0, "x")
    shape = build_shape(metadata(), health(), {}, sizes=[], past=(), settings=Maintenance())
    late = ActiveAlert("windows of demo.ticks", "late", 0, "x")
    assert table_health(None, None, ()) == Health(Level.UNKNOWN, "unknown")
    assert table_health(shape, None, ()) == Health(Level.WELL, "in shape")
    assert table_health(shape, None, (alert,)) == Health(Level.TROUBLE, "alert", ("manifests",))
    needs = Health(Level.TROUBLE, "needs attention")
    assert table_health(shape, held, ()) == table_health(shape, None, (late,)) == needs
    assert table_health(None, None, (), ("it is missing",)) == needs


def test_a_table_due_for_maintenance_has_the_same_state_in_its_view_and_the_overview():
    due = {Action.COMPACTION: DueCheck(True, "why"), Action.EXPIRY: DueCheck(False, "not yet")}
    shape = build_shape(metadata(), health(), due, sizes=[], past=(), settings=Maintenance())
    measured = combine_health(["demo.ticks"], (), {"demo.ticks": ["compaction"]})
    assert table_health(shape, None, ()) == measured == Health(Level.QUIET, "maintenance due", ("compaction",))


def test_a_table_missing_from_its_route_is_reported_as_missing_and_not_as_not_yet_created():
    shop: Any = SimpleNamespace(name="shop", table_problems={"shop.orders": "missing"})
    others: Any = SimpleNamespace(name="others", table_problems={})
    assert route_problems("shop.orders", (others, shop)) == (
        "The table differs from what the route of shop expects (missing): run `frazil route shop` for the remedy",
    )
    assert route_problems("shop.carts", (others, shop)) == ()
