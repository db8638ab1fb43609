"""A backfill's commits next to a live stream's: fenced, retried, and refused if the stream was reset meanwhile."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from frazil.audit.claims import MAX_CLOCK_STEP_MS, load_all_claims
from frazil.backfill.commit import BackfillCommitter, abandon
from frazil.backfill.request import parse_request
from frazil.commit.backfill_records import (
    MAX_RUNS,
    BackfillMarker,
    BackfillRecord,
    BackfillState,
    branch_name,
    property_name,
    published_records,
    read_backfill,
)
from frazil.commit.dead_letter_counts import Reason
from frazil.commit.expiry import ExpiryPlan, Pins, plan_expiry
from frazil.commit.history import Period, late_rows
from frazil.commit.journal import Journal
from frazil.commit.marker_changes import reset
from frazil.commit.reset_plan import read_state_before_reset
from frazil.commit.sweep import batch_folder
from frazil.errors import BackfillAbandoned, Fenced, FrazilError, StaleBatch, WriterBusy
from frazil.history.objects import ActionLog, HistoryStore
from frazil.ingest.contract import RangeProgress
from frazil.operations.dead_letters import count_rejected
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain
from frazil.spec.maintenance import Expiry
from frazil.status.recent_commits import DAY_MS, measure_recent_commits
from frazil.table.branches import head_of
from frazil.table.storage import LocalStore

REQUEST = parse_request({"stream": "events"})
BRANCH = branch_name("events")


def chunk(
    world: Any, committer: BackfillCommitter, ranges: Mapping[int, tuple[int, int]], bad: set[tuple[int, int]]
) -> Journal:
    """A chunk that is staged and not journaled yet."""
    key = committer.next_key()
    good = [(p, o) for p, of in ranges.items() for o in range(*of) if (p, o) not in bad]
    world.stream, stream = committer.own_tables.stream, world.stream
    files = (*world.write(key, good), *(world.write_dead_letters(key, sorted(bad)) if bad else ()))
    world.stream = stream
    made = world.journal(key, ranges, files, bad=bad)
    counts = {p: sum(q == p for q, _ in bad) for p in ranges}
    progress = tuple(
        RangeProgress("events", p, *of, of[1] - of[0] - counts[p], counts[p], None) for p, of in ranges.items()
    )
    return dataclasses.replace(made, progress=progress)


def stage(world: Any, committer: BackfillCommitter) -> None:
    committer.commit(chunk(world, committer, {0: (0, 5)}, {(0, 3)}), planned=2)
    committer.commit(chunk(world, committer, {0: (5, 10), 1: (0, 2)}, set()), planned=2)
    committer.mark_staged()


def publish(world: Any, committer: BackfillCommitter, late: Mapping[int, int] | None = None) -> BackfillMarker:
    head = head_of(world.load().metadata)
    return committer.publish(BackfillRecord(committer.backfill, late or {0: 11}), audited_at=head.snapshot_id)


LIVE = [(p, o) for p in (0, 1) for o in range(100, 110)]
BACKFILLED = [*((0, o) for o in range(10) if o != 3), (1, 0), (1, 1)]


def check_landed(world: Any, live: list[tuple[int, int]] = LIVE) -> None:
    assert world.rows() == sorted([*BACKFILLED, *live])
    assert world.dead_letters() == [(0, 3)]
    assert [r.backfill.state for r in published_records(world.tables.journals, world.load().metadata, "events")] == [
        BackfillState.STAGED
    ]
    for table in (world.load(), world.load_dead_letters()):
        assert BRANCH not in table.metadata.refs
        assert read_backfill(table.properties, "events").state is BackfillState.PUBLISHED
        assert world.manifests(table) == world.used_manifests(table)
        assert world.left_behind(table) == []


@pytest.mark.parametrize("windows", [1, 300])
def test_a_staged_backfill_lands_in_one_commit_of_main_and_the_live_stream_continues(live: Any, windows: int) -> None:
    late = {hour * 3_600_000_000: 1 for hour in range(windows)}
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    live.run(live.committer, {0: (110, 112)})
    before, marker = live.load().metadata, live.marker()
    publish(live, committer, late)
    assert live.marker() == marker, "the live stream's marker is untouched"
    own = [s for s in live.load().metadata.snapshots if s.sequence_number > before.last_sequence_number]
    (summary,) = [s.summary for s in own]
    assert summary["frazil.backfill"] == committer.backfill.id
    since = before.last_sequence_number
    cursor = Cursor(Grain.HOUR, 0, 300 * Grain.HOUR.us, since)
    found = late_rows(live.load(), cursor, column="ts", grain=Grain.HOUR)
    if windows == 1:
        assert found == late, "the summary tells"
    else:
        files = Cursor(Grain.HOUR, 0, 10**18, since)
        found = late_rows(live.load(), files, column="ts", grain=Grain.HOUR)
        assert sum(found.values()) == len(BACKFILLED), "more windows than a summary carries: the files tell"
    live.run(live.committer, {0: (112, 113)})
    check_landed(live, [*LIVE, (0, 110), (0, 111), (0, 112)])


@pytest.mark.parametrize("fault", ["next_answer_is_lost", "next_lands_late"])
@pytest.mark.parametrize("first", range(3))
def test_an_answer_that_is_lost_or_late_at_every_third_commit_changes_nothing(
    live: Any, first: int, fault: str
) -> None:
    original = live.catalog.commit_table

    def commit_table(*args: Any) -> Any:
        if len(live.catalog.attempts) % 3 == first:
            getattr(live.catalog, fault)()
        return original(*args)

    live.catalog.commit_table = commit_table
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    publish(live, committer)
    live.catalog.land_now()
    check_landed(live)


def expire(world: Any) -> ExpiryPlan:
    """Expire all snapshots that may expire half an hour later, with hardly any kept for its age alone."""
    table, settings = world.load(), Expiry(keep=timedelta(milliseconds=1), at_least=1, at_most=1)
    now_ms = head_of(table.metadata).timestamp_ms + 1_800_000
    plan = plan_expiry(table.metadata, settings, Pins(), table="demo.events", now_ms=now_ms)
    world.catalog.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=list(plan.expire)),))
    return plan


def test_expiry_may_run_while_a_backfill_is_audited(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    audited = head_of(live.load().metadata)
    live.run(live.committer, {0: (110, 111)})
    live.run(live.committer, {0: (111, 112)})
    assert expire(live).expire
    live.tables.main.refresh()
    committer.publish(BackfillRecord(committer.backfill, {}), audited_at=audited.snapshot_id)
    assert live.rows() == sorted([*BACKFILLED, *LIVE, (0, 110), (0, 111)])


def test_a_backfill_is_found_in_its_window_even_if_expiry_kept_only_its_snapshot(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    publish(live, committer)
    there = head_of(live.load().metadata)
    live.run(live.committer, {0: (110, 111)})
    live.run(live.committer, {0: (111, 112)})
    assert expire(live).retained_reasons.keys() == {there.snapshot_id}
    hour = Period(there.timestamp_ms, there.timestamp_ms + 1)
    found = published_records(live.tables.journals, live.load().metadata, "events", window=hour)
    assert [record.backfill.id for record in found] == [committer.backfill.id]


def test_the_audit_knows_the_epochs_in_which_a_backfill_may_have_been_published(live: Any) -> None:
    def published_in() -> set[tuple[int, int]]:
        claimed = load_all_claims(live.tables.journals, live.marker(), live.load().metadata)
        return {r.published_in for ranges in claimed.ranges.values() for r in ranges if r.epoch is None}

    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    publish(live, committer)
    published = head_of(live.load().metadata)
    live.clock_ms = published.timestamp_ms + MAX_CLOCK_STEP_MS + 1
    before = live.committer.epoch
    live.run(live.begin(), {0: (110, 111)})
    assert published_in() == {(0, before)}, "no batch is an hour older"
    live.load().maintenance.expire_snapshots().by_id(published.snapshot_id).commit()
    assert published_in() == {(0, before + 1)}, "it is unknown"


def test_a_tagged_snapshot_of_a_backfill_is_kept_when_the_backfill_is_published(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    table = live.load()
    named = head_of(table.metadata, BRANCH).snapshot_id
    with table.manage_snapshots() as refs:
        refs.create_tag(snapshot_id=named, tag_name="looked-at")
    publish(live, committer)
    assert live.rows(snapshot_id=named) == sorted(BACKFILLED)
    assert live.left_behind() == []
    assert BRANCH not in live.load().metadata.refs


def test_a_tagged_snapshot_stays_readable_if_another_run_ended_the_backfill_first(live: Any) -> None:
    """The first attempt began before the branch was named. It lost, and deletes nothing that it saw."""
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    other = dataclasses.replace(committer, tables=live.view())
    named = head_of(live.load().metadata, BRANCH).snapshot_id

    def name_and_publish() -> None:
        with live.load().manage_snapshots() as refs:
            refs.create_tag(snapshot_id=named, tag_name="looked-at")
        publish(live, other)

    live.catalog.next_meets(name_and_publish, table="demo.events")
    publish(live, committer)
    assert live.rows(snapshot_id=named) == sorted(BACKFILLED)


def test_a_run_whose_take_over_landed_unanswered_begins_one_epoch(live: Any) -> None:
    live.catalog.next_answer_is_lost("demo.events")
    assert BackfillCommitter.begin(live.tables, REQUEST).backfill.epoch == 1


@pytest.mark.parametrize("ending", ["published", "abandoned"])
def test_a_table_with_gc_disabled_keeps_the_files_of_an_ended_backfill(live: Any, ending: str) -> None:
    """A table registered elsewhere while the branch was there reads that branch still."""
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    with live.load().transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    before = live.manifests() | live.parquet_files()
    if ending == "published":
        publish(live, committer)
    else:
        abandon(live.tables, committer.backfill)
    assert BRANCH not in live.load().metadata.refs
    assert before <= live.manifests() | live.parquet_files()


def test_a_publication_overtaken_by_a_live_commit_succeeds_at_its_second_attempt(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    live.catalog.next_meets(lambda: live.run(live.committer, {0: (110, 111)}), table="demo.events")
    publish(live, committer)
    check_landed(live, [*LIVE, (0, 110)])


@pytest.mark.parametrize("again", [False, True])
def test_an_older_run_is_fenced_and_its_late_journal_is_never_committed(live: Any, again: bool) -> None:
    older = BackfillCommitter.begin(live.tables, REQUEST)
    newer = BackfillCommitter.begin(live.tables, REQUEST)
    assert newer.backfill.id == older.backfill.id
    late = chunk(live, older, {0: (0, 5)}, {(0, 3)})
    with pytest.raises(Fenced, match="took over"):
        older.commit(late, planned=1)
    stage(live, newer)
    publish(live, BackfillCommitter.begin(live.tables, REQUEST) if again else newer)
    check_landed(live)
    folder = batch_folder(live.load(), older.own_tables.stream, late.key).removeprefix("file://")
    assert not [path for path in live.all_parquet_files() if path.startswith(folder)]


def test_another_backfill_is_refused_until_the_first_is_abandoned_which_leaves_nothing(live: Any) -> None:
    files = live.all_parquet_files()
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    other = parse_request({"stream": "events", "to-offsets": {"events": {"0": 5}}})
    with pytest.raises(WriterBusy, match="frazil backfill events --abandon"):
        BackfillCommitter.begin(live.tables, other)
    abandon(live.tables, committer.backfill)
    assert live.all_parquet_files() == files
    for table in (live.load(), live.load_dead_letters()):
        assert BRANCH not in table.metadata.refs
        assert live.manifests(table) == live.used_manifests(table)
    assert live.tables.store.list_files(f"{live.tables.state}/backfills") == []
    with pytest.raises(Fenced, match="abandoned"):
        committer.mark_staged()
    assert BackfillCommitter.begin(live.tables, other).backfill.id != committer.backfill.id


def test_rejected_records_of_the_last_day_include_those_of_backfills(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    journal = chunk(live, committer, {0: (0, 5)}, {(0, 1), (0, 3)})
    reasons = {"TypeMismatch": Reason(2, ("events[0]@1", "events[0]@3"))}
    committer.commit(dataclasses.replace(journal, reasons=reasons), planned=1)
    committer.mark_staged()
    publish(live, committer)
    metadata, now_ms = live.load().metadata, live.tables.clock_ms()
    spec: Any = SimpleNamespace(name="events", commit=SimpleNamespace(longest_interval=timedelta(minutes=1)))
    assert measure_recent_commits(metadata, spec, now_ms=now_ms).rejected_last_day == 2
    (rejected,) = count_rejected(metadata, "events", [], now_ms=now_ms)
    assert (rejected.reason, rejected.count, rejected.coordinates) == (
        "TypeMismatch",
        2,
        ("events[0]@1", "events[0]@3"),
    )
    later_ms = head_of(metadata).timestamp_ms + DAY_MS + 1
    assert measure_recent_commits(metadata, spec, now_ms=later_ms).rejected_last_day == 0


def test_an_error_names_how_to_publish_another_backfill_on_a_branch(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, REQUEST.model_copy(update={"target": "branch"}))
    stage(live, committer)
    committer.mark_staged()
    other = parse_request({"stream": "events", "to-offsets": {"events": {"0": 5}}})
    with pytest.raises(WriterBusy, match="To publish it: `frazil backfill events`"):
        BackfillCommitter.begin(live.tables, other)


def test_a_run_whose_backfill_was_abandoned_cannot_restart_it_but_a_new_run_can(live: Any) -> None:
    first, second = (parse_request({"stream": "events", "run": run}) for run in ("dag/first", "dag/second"))
    committer = BackfillCommitter.begin(live.tables, first)
    again = BackfillCommitter.begin(live.tables, second)
    assert again.backfill.id == committer.backfill.id, "a run goes on with what another one left"
    abandon(live.tables, again.backfill, by="ada")
    with pytest.raises(BackfillAbandoned, match="ada abandoned the backfill"):
        again.mark_staged()
    for request in (first, second):
        with pytest.raises(
            BackfillAbandoned, match=f"the backfill that run {request.run} had begun on stream 'events'"
        ):
            BackfillCommitter.begin(live.tables, request)
    with pytest.raises(BackfillAbandoned, match="ada abandoned"):
        BackfillCommitter.begin(live.tables, REQUEST, continuing_id=again.backfill.id)
    new = BackfillCommitter.begin(live.tables, first.model_copy(update={"run": "dag/third"}))
    stage(live, new)
    publish(live, new)
    check_landed(live)
    with pytest.raises(BackfillAbandoned):
        BackfillCommitter.begin(live.tables, first)


def test_an_abandoned_backfill_whose_run_was_not_recorded_can_be_started_once_more_by_its_run(live: Any) -> None:
    """It looks like a new run, which an operator may want. If it were refused, it could never begin."""
    request = parse_request({"stream": "events", "run": "dag/first"})
    begun = BackfillCommitter.begin(live.tables, request).backfill
    earlier = {k: v for k, v in begun.to_json().items() if k not in {"runs", "abandoned_by", "abandoned_runs"}}
    for table in (live.load(), live.load_dead_letters()):
        if property_name("events") in table.properties:
            table.transaction().set_properties({property_name("events"): json.dumps(earlier)}).commit_transaction()
    unnamed = read_backfill(live.load().properties, "events")
    assert unnamed == dataclasses.replace(begun, runs=())
    abandon(live.tables, unnamed, by="ada")
    again = BackfillCommitter.begin(live.tables, request).backfill
    assert again.id != begun.id
    abandon(live.tables, again, by="ada")
    with pytest.raises(BackfillAbandoned, match="the backfill that run dag/first had begun"):
        BackfillCommitter.begin(live.tables, request)


def test_a_run_that_discards_its_own_unusable_backfill_starts_again(live: Any) -> None:
    request = parse_request({"stream": "events", "run": "dag/first"})
    abandon(live.tables, BackfillCommitter.begin(live.tables, request).backfill)
    assert BackfillCommitter.begin(live.tables, request).backfill.epoch == 2


def test_a_backfill_dropped_by_its_run_records_only_the_first_user_who_abandons_it(live: Any) -> None:
    request = parse_request({"stream": "events", "run": "dag/first"})
    committer = BackfillCommitter.begin(live.tables, request).backfill
    assert abandon(live.tables, committer).abandoned_by == ""
    assert abandon(live.tables, committer, by="ada").abandoned_by == "ada"
    assert abandon(live.tables, committer, by="bob").abandoned_by == "ada", "who comes later changes nothing"
    for table in (live.load(), live.load_dead_letters()):
        assert read_backfill(table.properties, "events").abandoned_by == "ada"
    reported, _ = HistoryStore.open(live.load(), "events").read_actions(ActionLog.USERS)
    said = ["begins, for the run dag/first", "was abandoned by ada"]
    assert sorted(action.sentence for action in reported) == [f"backfill {committer.id} {words}" for words in said]
    with pytest.raises(BackfillAbandoned):
        BackfillCommitter.begin(live.tables, request)


def test_abandoning_a_backfill_that_a_newer_backfill_followed_is_refused(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    publish(live, committer)
    following = BackfillCommitter.begin(live.tables, REQUEST).backfill
    with pytest.raises(
        FrazilError, match=f"{committer.backfill.id} .* had already ended. The stream's last backfill is {following.id}"
    ):
        abandon(live.tables, committer.backfill, by="ada")
    assert read_backfill(live.load().properties, "events") == following


def test_the_backfill_dialog_lists_the_latest_runs(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, parse_request({"stream": "events", "run": "dag/first"})).backfill
    others = [f"dag/{number}" for number in range(MAX_RUNS)]
    for run in ("dag/0", "dag/first", *others[1:], "dag/first"):
        committer = committer.with_epoch(committer.epoch + 1, run)
    assert committer.runs == ("dag/0", *others[1:], "dag/first")[-MAX_RUNS:]
    before = dataclasses.replace(committer, abandoned_runs=("dag/first", "dag/older"))
    assert before.as_abandoned("ada").abandoned_runs == committer.runs


def test_a_backfill_is_not_published_after_a_reset_even_if_the_stream_is_at_the_same_position(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    audited = head_of(live.load().metadata).snapshot_id
    back = {("events", 0): 0, ("events", 1): 0}
    reset(live.tables, target=back, source=live.source, seen=read_state_before_reset(live.tables))
    record = BackfillRecord(committer.backfill, {})
    with pytest.raises(StaleBatch, match="was reset"):
        committer.publish(record, audited_at=audited)
    with pytest.raises(StaleBatch, match="was reset to before"):
        committer.publish(record, audited_at=head_of(live.load().metadata).snapshot_id)
    live.run(live.begin(), {0: (0, 110), 1: (0, 110)})
    with pytest.raises(StaleBatch, match="was reset"):
        committer.publish(record, audited_at=audited)
    assert list(published_records(live.tables.journals, live.load().metadata, "events")) == [], (
        "an intention is no claim"
    )


def give_up_the_schema(live: Any) -> None:
    with live.load().update_schema(allow_incompatible_changes=True) as update:
        update.make_column_optional("ts")
    with live.load().update_schema(allow_incompatible_changes=True) as update:
        update.add_column("needed", update._schema.find_type("name"), required=True, default_value="x")


def test_files_of_a_schema_that_the_table_gave_up_are_not_published(live: Any) -> None:
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    stage(live, committer)
    give_up_the_schema(live)
    with pytest.raises(StaleBatch, match="no longer has"):
        publish(live, committer)


def test_a_run_reports_who_abandoned_its_backfill_even_if_the_schema_also_changed(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "sync_files", lambda *_: None)  # as of objects, which need none
    committer = BackfillCommitter.begin(live.tables, REQUEST)
    staged = chunk(live, committer, {0: (0, 5)}, set())
    abandon(live.tables, committer.backfill, by="ada")
    give_up_the_schema(live)
    with pytest.raises(BackfillAbandoned, match="ada abandoned"):
        committer.commit(staged, planned=1)
