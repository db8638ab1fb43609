"""A replay turns dead letters that the current declaration accepts into rows, once, wherever it is killed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from frazil.audit.stream_audit import audit_stream
from frazil.backfill import commit as committing
from frazil.backfill.commit import BackfillCommitter, abandon, find_unfinished
from frazil.cli.dlq import _result_message
from frazil.commit import dead_letter_counts
from frazil.commit.backfill_records import BackfillState, branch_name, committed_chunks, read_backfill
from frazil.commit.committer import Committer
from frazil.commit.history import WINDOWS_KEY
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey
from frazil.commit.marker_changes import reset
from frazil.commit.open_streams import open_stream
from frazil.commit.reset_plan import read_state_before_reset
from frazil.commit.staging_targets import target_table
from frazil.commit.sweep import batch_folder
from frazil.dead_letters import replay as replaying
from frazil.dead_letters.replay import replay
from frazil.dead_letters.selection import DiscardMark, LeftOutReason, Selection, count_left_out, discard, read_samples
from frazil.errors import (
    BackfillAbandoned,
    Fenced,
    FrazilError,
    SchemaIncompatible,
    SpecError,
    StorageUnavailable,
    WriterBusy,
)
from frazil.ingest.contract import RangeProgress
from frazil.ingest.sealing import OMITTED, SEALED, Sealer, name_part
from frazil.ingest.stage import stage
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.offsets.spans import SourceIdentity
from frazil.operations.stream_actions import plan_abandon
from frazil.spec.model import StreamSpec
from frazil.spec.sensitive import Sensitive
from frazil.spec.upsert import Dedupe
from frazil.status.recent_commits import measure_recent_commits
from frazil.table.catalogs import load_catalog
from frazil.table.sql_catalog import PreparedSqlCatalog
from frazil.table.storage import LocalStore
from frazil.table.tables import ensure_table

END, LETTERS = 20, 10
GOOD, BAD = range(0, LETTERS, 2), range(1, LETTERS, 2)
SOURCE = SourceIdentity("cluster", {"events": "topic"})
WHEN = datetime(2024, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """Simulates SIGKILL: the package never catches it."""


@pytest.fixture
def kept() -> Callable[[bytes, int], bytes]:
    """Return what a dead letter keeps of the value at an offset: by default, the value."""
    return lambda value, _: value


@pytest.fixture
def live(
    tmp_path: Path,
    declared_stream: Callable[..., Any],
    frazil_home: Path,  # noqa: ARG001
    event: Any,
    kept: Callable[[bytes, int], bytes],
) -> Any:
    """A stream at offset 20 with ten rows and ten dead letters. It would accept the even dead letters today."""
    stream = declared_stream(tmp_path, name="events", topic="events", bootstrap="127.0.0.1:1")
    ensure_table(load_catalog(None), stream.spec)
    tables = open_stream(stream.spec).tables
    committer = Committer.take_over(tables, source=SOURCE, initial=lambda: {("events", 0): 0})
    write(stream, committer, SOURCE, range(LETTERS, END), {n: kept(value(event, n), n) for n in range(LETTERS)})
    return stream


def value(event: Any, offset: int) -> bytes:
    return event(offset) if offset % 2 == 0 else b"no event %d" % offset  # type: ignore[no-any-return]


def write(
    stream: Any,
    committer: Committer,
    source: SourceIdentity,
    offsets: range,
    values: Mapping[int, bytes],
) -> None:
    """Commit a batch: rows of these offsets, and dead letters with these values."""
    end = max([*offsets, *values]) + 1
    main, tables = stream.table(), open_stream(stream.spec).tables
    key = BatchKey(committer.epoch, 1)
    place = {"kafka_topic": "events", "kafka_partition": 0, "kafka_timestamp": WHEN}
    dead_letter = {**place, "topic_id": source.topic_ids["events"], "stream": "events", "rejected_at": WHEN}
    dead_letters = [
        {
            **dead_letter,
            "kafka_offset": n,
            "value": kept,
            "error_class": "MissingField" if n in GOOD else "NotAnObject",
            "error": "it was so then",
        }
        for n, kept in values.items()
    ]
    rows = [{**place, "kafka_offset": n, "id": n, "at": WHEN, "note": "x"} for n in offsets]
    files = []
    for target, table, found in (("main", main, rows), ("dead-letters", tables.dead_letters.current(), dead_letters)):
        folder = batch_folder(table, "events", key)
        writer = TableWriter(target_table(table, folder=folder), target, io=table.io, file_name=file_namer(0, 0))  # type: ignore[arg-type]
        writer.add(pa.Table.from_pylist(found, schema=writer.layout.arrow_schema))
        files += writer.finish()
    batch = Journal(
        stream="events",
        key=key,
        table_uuid=str(main.metadata.table_uuid),
        created_at_ms=tables.clock_ms(),
        source=source,
        progress=(RangeProgress("events", 0, 0, end, len(rows), len(dead_letters), None),),
        files=tuple(files),
        newest_dead_letters=committer.newest_dead_letters(),
        idle=frozenset(),
        offsets_after={("events", 0): end},
    )
    assert tables.journals.put(batch)
    committer.commit(batch)


def dead_letters(live: Any) -> dict[int, tuple[str, int | None]]:
    found = live.table("_dead_letters").scan().to_arrow().to_pylist()
    assert len({r["kafka_offset"] for r in found}) == len(found)
    return {r["kafka_offset"]: (r["error_class"], r["replays"]) for r in found}


def check_settled(live: Any, replays: int | None = 1) -> None:
    """Check that each record is in one table, and that the replay left nothing behind."""
    assert live.ids() == sorted([*GOOD, *range(LETTERS, END)])
    assert dead_letters(live) == dict.fromkeys(BAD, ("NotAnObject", replays))
    tables = open_stream(live.spec).tables
    for handle in (tables.main, tables.dead_letters):
        table = handle.refresh()
        assert branch_name("events") not in table.metadata.refs
        backfill = read_backfill(table.properties, "events")
        assert backfill is not None
        assert backfill.state is BackfillState.PUBLISHED
    # The copy of a replay that never began is deleted a day later.
    assert replays is None or tables.store.list_files(f"{tables.state}/replays") == []
    check_audit(live)


def check_audit(live: Any) -> None:
    audit = audit_stream(open_stream(live.spec).tables)
    assert audit.errors == ()


@pytest.mark.usefixtures("frazil_home")
def test_a_dry_run_counts_all_records_of_a_small_replay(
    tmp_path: Path, declared_stream: Callable[..., Any], event: Any
) -> None:
    """A sample would contain only the first half of each eighth, where all records are valid."""
    stream, count = declared_stream(tmp_path, name="events", topic="events", bootstrap="127.0.0.1:1"), 4000
    ensure_table(load_catalog(None), stream.spec)
    committer = Committer.take_over(open_stream(stream.spec).tables, source=SOURCE, initial=lambda: {("events", 0): 0})
    values = {n: event(n) if n % 500 < 250 else b"no event" for n in range(count)}
    write(stream, committer, SOURCE, range(count, count + 1), values)
    found = replaying.preview(open_stream(stream.spec), Selection())
    assert (found.landing, found.failing) == (2000, 2000)


def test_dead_letters_that_decode_now_become_rows_and_the_others_keep_their_history(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_stream(live.spec)
    monkeypatch.setattr(dead_letter_counts, "MAX_RECENT_AGE_MS", opened.tables.clock_ms())
    (done,) = replay(opened, Selection())
    assert (done.landed, done.failed) == (len(GOOD), len(BAD))
    check_settled(live)
    head = live.table().current_snapshot()
    assert head.summary[WINDOWS_KEY] == '{"1704067200000000":5}', "complete windows reopen"
    for hours, counted in ((0, len(GOOD)), (25, 0)):
        now_ms = head.timestamp_ms + hours * 3_600_000
        assert measure_recent_commits(live.table().metadata, live.spec, now_ms=now_ms).measured.replayed == counted
    reported = live.table("_dead_letters").current_snapshot().summary.additional_properties
    (((name, _), more),) = dead_letter_counts.parse_dead_letter_summary(reported).by.items()
    assert (name, more) == ("MissingField", -len(GOOD))
    (again,) = replay(opened, Selection())
    assert (again.landed, again.failed) == (0, len(BAD))
    check_settled(live, replays=2)
    later = measure_recent_commits(live.table().metadata, live.spec, now_ms=head.timestamp_ms).measured
    assert later.replayed == len(GOOD), "the marker has a later replay or backfill"
    row = live.table("_dead_letters").scan("kafka_offset = 1").to_arrow().to_pylist()[0]
    assert row["value"] == b"no event 1"
    assert row["rejected_at"] == WHEN
    assert row["error"].count("; before, NotAnObject: it was so then") == 1


@pytest.mark.usefixtures("in_this_process", "frazil_home")
def test_dead_letters_between_rows_are_replayed_as_one_offset_range(
    tmp_path: Path, declared_stream: Callable[..., Any], event: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.backfill.run.MAX_SPANS", 2)
    stream = declared_stream(tmp_path, name="events", topic="events", bootstrap="127.0.0.1:1")
    ensure_table(load_catalog(None), stream.spec)
    opened = open_stream(stream.spec)
    committer = Committer.take_over(opened.tables, source=SOURCE, initial=lambda: {("events", 0): 0})
    write(stream, committer, SOURCE, range(1, END, 2), {n: event(n) for n in range(0, END, 2)})
    (done,) = replay(opened, Selection())
    assert (done.landed, done.failed) == (END // 2, 0)
    backfill = read_backfill(stream.table().properties, "events")
    assert backfill is not None
    (chunk,) = committed_chunks(opened.tables.journals, backfill)
    assert [(p.start, p.end, p.records) for p in chunk.progress] == [(0, END - 1, END // 2)]
    assert stream.ids() == [*range(END)]
    check_audit(stream)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("key", "landed"), [("id", GOOD), ("note", ())])
def test_dead_letters_that_repeat_a_row_are_dropped_if_the_stream_drops_repeats(
    live: Any, key: str, landed: Sequence[int]
) -> None:
    """All dead letters have the rows' note, and an event time less than a second away."""
    spec = live.spec.model_copy(update={"dedupe": Dedupe(key=(key,), within=timedelta(seconds=1))})
    (done,) = replay(open_stream(spec), Selection())
    repeated = len(GOOD) - len(landed)
    assert (done.landed, done.repeated, done.failed) == (len(landed), repeated, len(BAD))
    said = f" {repeated} repeated a row and were dropped;" if repeated else ""
    assert (
        _result_message(spec, done) == f"Stream events: {len(landed)} dead letters are rows now;{said} 5 failed again."
    )
    assert live.ids() == sorted([*landed, *range(LETTERS, END)])
    assert dead_letters(live) == dict.fromkeys(BAD, ("NotAnObject", 1))
    audited = audit_stream(open_stream(spec).tables, drops_repeats=True)
    assert audited.clean, audited.findings
    live.table().delete(f"id == {END - 1}")
    assert len(audit_stream(open_stream(spec).tables, drops_repeats=True).errors) == 1


@pytest.mark.parametrize("dedupe", [None, Dedupe(key=("id",), within=timedelta(seconds=1))])
@pytest.mark.usefixtures("in_this_process")
def test_dead_letters_of_a_recreated_topic_are_replayed_although_former_rows_share_offsets(
    live: Any, event: Any, dedupe: Dedupe | None
) -> None:
    spec = live.spec.model_copy(update={"dedupe": dedupe})
    opened, source = open_stream(spec), SourceIdentity("cluster", {"events": "made again"})
    reset(opened.tables, target={("events", 0): 0}, source=source, seen=read_state_before_reset(opened.tables))
    committer = Committer.take_over(opened.tables, source=source, initial=dict)
    dead_letters_again = range(LETTERS, END)
    write(live, committer, source, range(LETTERS), {n: value(event, n) for n in dead_letters_again})
    assert count_left_out(opened, Selection()) == {LeftOutReason.RECREATED: LETTERS}
    (done,) = replay(opened, Selection())
    landed = [] if dedupe else dead_letters_again[::2]
    assert (done.landed, done.repeated, done.failed) == (len(landed), 5 - len(landed), 5)
    assert live.ids() == sorted([*range(END), *landed])
    assert dead_letters(live).keys() == {*range(LETTERS), *dead_letters_again[1::2]}
    assert audit_stream(open_stream(spec).tables, drops_repeats=dedupe is not None).errors == ()
    (again,) = replay(opened, Selection())
    assert (again.landed, again.failed) == (0, 5)


SECRET = "a secret of the tests"


def _sealed(value: bytes, offset: int) -> bytes:
    return Sealer(SECRET).encrypt(value, name_part("events", 0, offset, "value"))


def protected(live: Any, dead_letters: str) -> StreamSpec:
    declared = Sensitive.model_validate(
        {"fields": {"note": "hash"}, "secret": "${env:TEST_SECRET}", "dead-letters": dead_letters}
    )
    spec: StreamSpec = live.spec.model_copy(update={"sensitive": declared})
    return spec


@pytest.mark.parametrize("kept", [_sealed])
def test_encrypted_dead_letters_are_replayed_with_their_secret_alone_and_land_protected(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_stream(protected(live, "encrypt"))
    monkeypatch.setenv("TEST_SECRET", SECRET + "!")
    with pytest.raises(SpecError, match=r"the dead letter of events\[0\]@0 value was not encrypted with the current"):
        replay(opened, Selection())
    monkeypatch.setenv("TEST_SECRET", SECRET)
    assert read_backfill(live.table().properties, "events") is None, "nothing has begun"
    (done,) = replay(opened, Selection())
    assert (done.landed, done.failed) == (len(GOOD), len(BAD))
    assert live.ids() == sorted([*GOOD, *range(LETTERS, END)])
    landed = live.table().scan("kafka_offset < 10", selected_fields=("note",)).to_arrow()["note"].to_pylist()
    assert set(landed) == {Sealer(SECRET).hash_text("x")}
    left = live.table("_dead_letters").scan().to_arrow().to_pylist()
    assert all(row["value"].startswith(SEALED) for row in left)
    for decrypt, text in ((False, "(encrypted)"), (True, "no event 1")):
        found = read_samples(live.table("_dead_letters"), opened.spec, Selection(), limit=10, decrypt=decrypt)
        assert [dead_letter.value for dead_letter in found if dead_letter.where == "events[0]@1"] == [text]
    check_audit(live)


@pytest.mark.parametrize("kept", [lambda *_: OMITTED])
def test_dead_letters_that_keep_no_value_are_not_replayed(live: Any) -> None:
    opened = open_stream(protected(live, "omit"))
    assert replay(opened, Selection()) == ()
    assert {
        dead_letter.value
        for dead_letter in read_samples(live.table("_dead_letters"), opened.spec, Selection(), limit=20)
    } == {"(not kept)"}


@pytest.mark.usefixtures("in_this_process")
def test_only_selected_dead_letters_are_replayed_and_an_empty_selection_starts_no_replay(live: Any) -> None:
    opened = open_stream(live.spec)
    for nothing in (Selection(reasons=("OutOfRange",)), Selection(end=WHEN)):
        assert replay(opened, nothing) == ()
    (done,) = replay(opened, Selection(reasons=("NotAnObject",)))
    assert (done.landed, done.failed) == (0, len(BAD))
    assert dead_letters(live) == {
        **dict.fromkeys(BAD, ("NotAnObject", 1)),
        **dict.fromkeys(GOOD, ("MissingField", None)),
    }
    check_audit(live)


@pytest.mark.usefixtures("in_this_process")
def test_a_replay_that_was_interrupted_is_distinguished_from_the_one_that_finishes_it(live: Any) -> None:
    with killed_at(5), pytest.raises(Killed):
        replay(open_stream(live.spec), Selection(reasons=("NotAnObject",)))
    done = replay(open_stream(live.spec), Selection(reasons=("MissingField",)))
    assert [(d.interrupted, d.landed, d.failed) for d in done] == [(True, 0, len(BAD)), (False, len(GOOD), 0)]


def test_a_replay_taken_over_by_another_reports_it_and_each_dead_letter_is_counted_once(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []

    def overtaken(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(replaying, "stage", lambda *args, **more: stage(*args, **{**more, "attempt": 0}))
        reported.extend(replay(open_stream(live.spec), Selection(reasons=("MissingField",))))
        return stage(*args, **{**more, "attempt": 0})

    monkeypatch.setattr(replaying, "stage", overtaken)
    with pytest.raises(Fenced, match="another `frazil dlq replay events` took over this replay"):
        replay(open_stream(live.spec), Selection())
    assert [(d.interrupted, d.landed, d.failed) for d in reported] == [(True, len(GOOD), len(BAD))]
    check_settled(live)


@pytest.mark.usefixtures("in_this_process")
def test_a_replay_abandoned_by_a_user_ends_and_its_run_starts_no_other(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = replaying.stage

    def abandoned(*args: Any, **more: Any) -> Any:
        plan_abandon(live.spec, by="ada").carry_out()
        return inner(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "stage", abandoned)
        with pytest.raises(BackfillAbandoned, match="ada abandoned the replay of dead letters"):
            replay(open_stream(live.spec), Selection(), run="dag/first")
    with pytest.raises(BackfillAbandoned, match="the backfill that run dag/first had begun"):
        replay(open_stream(live.spec), Selection(), run="dag/first")
    assert dead_letters(live).keys() == set(range(LETTERS))
    assert [d.landed for d in replay(open_stream(live.spec), Selection(), run="dag/second")] == [len(GOOD)]


@pytest.mark.usefixtures("in_this_process")
def test_one_of_two_concurrent_replays_reports_that_the_other_runs(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = replaying._copy_dead_letters

    def while_another_begins(*args: Any) -> int:
        monkeypatch.setattr(replaying, "_copy_dead_letters", copy)
        with killed_at(5), pytest.raises(Killed):
            replay(open_stream(live.spec), Selection(reasons=("NotAnObject",)))
        return copy(*args)

    monkeypatch.setattr(replaying, "_copy_dead_letters", while_another_begins)
    with pytest.raises(WriterBusy, match=r"finish it with `frazil dlq replay events --reason NotAnObject`"):
        replay(open_stream(live.spec), Selection())
    done = replay(open_stream(live.spec), Selection())
    assert [(d.interrupted, d.landed, d.failed) for d in done] == [(True, 0, len(BAD)), (False, len(GOOD), len(BAD))]


@pytest.mark.usefixtures("in_this_process")
def test_a_new_replay_starts_no_backfill_until_the_ending_replay_has_removed_its_dead_letters(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared = committing.finish_ended_backfill

    def while_another_is_published(*args: Any) -> str | None:
        found = cleared(*args)
        monkeypatch.setattr(committing, "finish_ended_backfill", cleared)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(committing, "finish_published", _killed)
            with pytest.raises(Killed):
                replay(open_stream(live.spec), Selection())
        return found

    monkeypatch.setattr(committing, "finish_ended_backfill", while_another_is_published)
    with pytest.raises(Fenced, match=r"another replay .* ended while this command was starting \(it is published\)"):
        replay(open_stream(live.spec), Selection())
    assert dead_letters(live).keys() == set(range(LETTERS))
    done = replay(open_stream(live.spec), Selection(reasons=("MissingField",)))
    assert [(d.interrupted, d.landed) for d in done] == [(True, len(GOOD))]
    assert (live.ids(), dead_letters(live).keys()) == (sorted([*GOOD, *range(LETTERS, END)]), {*BAD})
    check_audit(live)


def _killed(*_: Any, **__: Any) -> None:
    raise Killed


MARK = DiscardMark("ada", "of no use", 1_800_000_000_000)


def discard_once_copied(patch: pytest.MonkeyPatch, spec: StreamSpec, discarded: Selection) -> None:
    copy = replaying._copy_dead_letters

    def while_a_user_discards(*args: Any) -> int:
        copied = copy(*args)
        assert discard(open_stream(spec), discarded, MARK)
        return copied

    patch.setattr(replaying, "_copy_dead_letters", while_a_user_discards)


def check_none_is_discarded_and_replayed(spec: StreamSpec, discarded: Selection) -> None:
    """Discard dead letters after a replay has copied them, which omits them, and when it has staged the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackfillCommitter, "publish", _killed)
        discard_once_copied(patch, spec, discarded)
        with pytest.raises(Killed):
            replay(open_stream(spec), Selection())
    with pytest.raises(WriterBusy, match="are being replayed, so none was discarded"):
        discard(open_stream(spec), Selection(), MARK)
    (finished,) = replay(open_stream(spec), Selection(reasons=("Other",)))
    assert finished.interrupted
    assert discard(open_stream(spec), Selection(), MARK) == finished.failed, "all others have left"


@pytest.mark.usefixtures("in_this_process")
def test_a_dead_letter_is_discarded_or_replayed_and_never_both(live: Any) -> None:
    check_none_is_discarded_and_replayed(live.spec, Selection(reasons=("MissingField",)))
    assert live.ids() == [*range(LETTERS, END)]
    assert dead_letters(live).keys() == set(range(LETTERS))
    check_audit(live)


@pytest.mark.usefixtures("in_this_process")
def test_a_problem_found_by_the_publication_is_reported_unchanged(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.backfill.run.find_problems", lambda _: ["a record is lost"])
    with pytest.raises(FrazilError, match="is not published: a record is lost"):
        replay(open_stream(live.spec), Selection())


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (SchemaIncompatible("a column was dropped"), False),
        (SpecError("no secret"), False),
        (StorageUnavailable(""), True),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_a_replay_that_fails_before_it_stages_anything_stays_open_only_if_it_can_continue(
    live: Any, monkeypatch: pytest.MonkeyPatch, error: FrazilError, stays: bool
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "stage", fails)
        with pytest.raises(type(error)):
            replay(open_stream(live.spec), Selection())
    assert (find_unfinished(open_stream(live.spec).tables) is not None) == stays
    assert sum(d.landed for d in replay(open_stream(live.spec), Selection())) == len(GOOD)
    check_audit(live)


@pytest.mark.usefixtures("in_this_process")
def test_an_abandoned_replay_leaves_the_dead_letters_as_they_were(live: Any) -> None:
    before = dead_letters(live)
    opened = open_stream(live.spec)
    with killed_at(5), pytest.raises(Killed):
        replay(opened, Selection())
    backfill = read_backfill(live.table().properties, "events")
    assert backfill is not None
    assert backfill.is_open
    abandon(opened.tables, backfill)
    assert (dead_letters(live), live.ids()) == (before, [*range(LETTERS, END)])
    check_audit(live)
    replay(open_stream(live.spec), Selection())
    assert live.ids() == sorted([*GOOD, *range(LETTERS, END)])


STEPS: tuple[tuple[type, str], ...] = (
    (PreparedSqlCatalog, "commit_table"),
    (LocalStore, "put"),
    (LocalStore, "put_if_absent"),
    (LocalStore, "delete_each"),
)
"""What changes anything that outlives the process."""
STEPS_MADE = 22
"""Number of these steps in one replay."""


@contextmanager
def killed_at(step: int, *, after: bool = False) -> Iterator[Counter[str]]:
    """Die before or after the n-th change, counted from 0. Yields the number of changes made."""
    made: Counter[str] = Counter()
    number = itertools.count()

    def dying(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **more: Any) -> Any:
            mine = next(number) == step
            if mine and not after:
                raise Killed(name)
            answer = original(*args, **more)
            made[name] += 1
            if mine:
                raise Killed(name)
            return answer

        return change

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, dying(name, getattr(owner, name)))
        yield made


def in_turns(steps: int) -> list[Any]:
    """Return all steps of a replay: each commit tries the first, the end, and an eighth of the others."""
    return [0, *(pytest.param(step, marks=pytest.mark.rotates(8)) for step in range(1, steps)), steps]


def is_killed(spec: StreamSpec, step: int, *, after: bool) -> bool:
    """Replay all dead letters, and die at this change if it exists. Return whether it died."""
    with killed_at(step, after=after):
        try:
            replay(open_stream(spec), Selection())
        except Killed:
            return True
    return False


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("step", in_turns(STEPS_MADE))
@pytest.mark.usefixtures("in_this_process")
def test_a_replay_that_is_killed_anywhere_and_run_again_lands_each_dead_letter_once(
    live: Any, step: int, after: bool
) -> None:
    killed = is_killed(live.spec, step, after=after)
    assert killed == (step < STEPS_MADE), "every step is tried, and the last one is no step any more"
    check_audit(live)
    assert set(live.ids()) | dead_letters(live).keys() == set(range(END)), "no record is ever in no table"
    settled = GOOD[0] not in dead_letters(live)
    done = replay(open_stream(live.spec), Selection(reasons=("MissingField",)))
    assert sum(d.landed for d in done) == (0 if settled else len(GOOD)), "each is told once"
    check_settled(live, dead_letters(live)[1][1])
