"""The alerts of a stream's operation: when they fire, and that they resolve with their cause."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.aggregate.day_input import WaitingDay
from frazil.cli.partitions import partitions
from frazil.commit.dead_letter_counts import Reason, count_reasons, parse_reasons, reasons_summary
from frazil.commit.journal import Journal
from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.host.launcher import Observation, ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.records import (
    ExitRecord,
    Launch,
    LaunchKind,
    SupervisionTimes,
    append_exit,
    write_supervision_times,
)
from frazil.host.supervising_run import confirm_given_up
from frazil.ingest.contract import RangeProgress, Reject, Rejects
from frazil.maintenance.alerts import AlertState, AlertStates, Reading, evaluate_readings
from frazil.maintenance.stream_rules import (
    aggregation_reading,
    boolean_reading,
    evaluate_stream_rules,
    held_reading,
    runs_reading,
)
from frazil.spec.load import load_stream, validate_stream
from frazil.spec.maintenance import Alerts
from frazil.spec.model import StreamSpec
from frazil.status.recent_commits import CommitSums, RecentCommits
from frazil.status.state import State, StreamState, WriterProcess
from frazil.status.stream import read_stream_state
from tests.made_batches import MadeStream

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
ALERTS = Alerts()
WELL = StreamState("s", "demo.t", desired="running", alive=True, table_exists=True)
STALL = Stall(StallKind.OFFSETS, NOW_MS, "s-3", "s-3 holds the offsets back: see writer.log")


def beyond(state: StreamState) -> dict[str, str]:
    return {r.rule: r.sentence for r in evaluate_stream_rules(state, ALERTS, now_ms=NOW_MS) if r.is_beyond}


def state(*, ended_at_ms: int | None = None, **changes: Any) -> StreamState:
    usual = {"records": 1_000, "rejected": 0, "stale": 0, "replayed": 0}
    landed = {name: changes.pop(name, of) for name, of in usual.items()}
    process = WriterProcess(ProcessState.NEVER_LAUNCHED if ended_at_ms is None else "ended", ended_at_ms=ended_at_ms)
    return dataclasses.replace(
        WELL, writer=process, recent_commits=RecentCommits(None, (), 0, measured=CommitSums(**landed)), **changes
    )


def observe(spec: StreamSpec, problem: str | None = None, *, now_ms: int) -> StreamState:
    return read_stream_state(spec, now_ms=now_ms, problem=problem, in_full=False)


def landed(state: StreamState) -> tuple[int, int]:
    assert state.recent_commits is not None
    return state.recent_commits.measured.records, state.recent_commits.measured.rejected


@pytest.mark.parametrize(
    ("changes", "rule", "says"),
    [
        ({"problem": "s.yaml: latenes: is an unknown key"}, "declaration", "s.yaml: latenes: is an unknown key"),
        ({"alive": False, "ended_at_ms": NOW_MS - 6 * MINUTE_MS}, "writer", "no writer has run for 6 min 0 s"),
        ({"alive": False}, "writer", "no writer has ever run"),
        (
            {"alive": None, "given_up": "it broke"},
            "writer",
            "its supervisor gave up: it broke. `frazil status s` shows",
        ),
        ({"crashes": 4, "last_error": "boom"}, "restarts", "4 times in a row"),
        (
            {"state": State.KAFKA_UNREACHABLE, "sentence": "Kafka at k:9092 has not answered for 28 s"},
            "stall",
            "stream s: Kafka at k:9092 has not answered for 28 s",
        ),
        (
            {"state": State.REGISTRY_UNREACHABLE, "sentence": "the registry responds with status 503"},
            "registry",
            "stream s waits for its schema registry, and cannot decode records until then. the registry responds with",
        ),
        ({"stall": STALL}, "stall", "the writer of stream s is stalled: s-3 holds the offsets back: see writer.log"),
        ({"waiting_batches": 4}, "waiting-batches", "4 batches of stream s"),
        ({"rejected": 51}, "dead-letters", "51 of the 1,000 records"),
        ({"rejected": 51, "replayed": 51}, "dead-letters", "Within this time, 51 dead letters were replayed into the"),
        ({"records": 99, "rejected": 99}, "dead-letters", "99 of the 99 records"),
        ({"records": 19, "rejected": 10}, "dead-letters", "10 of the 19 records"),
        ({"records": 19, "stale": 10}, "stale-changes", "10 of the 19 records"),
        ({"stale": 201}, "stale-changes", "201 of the 1,000 records that stream s committed within the last hour were"),
    ],
)
def test_each_rule_has_one_alert_with_its_numbers_and_a_way_out(changes: dict[str, Any], rule: str, says: str) -> None:
    found = beyond(state(**changes))
    assert set(found) == {rule}
    assert says in found[rule]
    assert evaluate_stream_rules(state(**changes), Alerts(enabled=False), now_ms=NOW_MS) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"alive": False, "ended_at_ms": NOW_MS - MINUTE_MS},
        {"alive": False, "desired": "paused"},
        {"alive": False, "desired": None},
        {"alive": None, "ended_at_ms": 0},
        {"alive": False, "ended_at_ms": NOW_MS + 4 * MINUTE_MS},
        {"crashes": 2},
        {"waiting_batches": None},
        {"records": 99, "rejected": 9, "stale": 9},
        {"records": 60, "rejected": 30, "stale": 30},
        {"records": 0},
        {"rejected": 50},
        {"stale": 200},
    ],
)
def test_healthy_intentional_and_unknown_stream_states_raise_no_alert(changes: dict[str, Any]) -> None:
    assert beyond(state(**changes)) == {}


def test_a_dead_letter_share_of_few_records_is_unknown_unless_it_is_zero() -> None:
    def share(records: int, rejected: int) -> float | None:
        found = evaluate_stream_rules(state(records=records, rejected=rejected), ALERTS, now_ms=NOW_MS)
        return next(r.value for r in found if r.rule == "dead-letters")

    assert (share(100, 50), share(99, 9), share(99, 0), share(0, 0)) == (50, None, 0, 0)


def test_a_boolean_alert_fires_at_once_and_stays_active_while_its_condition_holds() -> None:
    states, seen = AlertStates(), []
    for is_so in (True, True, False, False, True):
        made = evaluate_readings(
            states, "stream s", [boolean_reading("declaration", is_so, "it is broken")], ALERTS, now_ms=NOW_MS
        )
        states = AlertStates.from_json(json.loads(json.dumps(made.states.to_json())))
        seen.append((len(made.fired), len(made.active), len(made.resolved)))
    assert seen == [(1, 1, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0), (1, 1, 0)]


def of(readings: tuple[Reading, ...]) -> list[bool]:
    return [reading.is_beyond for reading in readings]


def test_held_windows_late_days_and_failed_runs_are_named() -> None:
    assert of(held_reading("demo.t", [], ALERTS)) == [False]
    (held,) = held_reading("demo.t", [(f"2013-12-30T{n:02}", f"-{n + 7}") for n in range(9)], ALERTS)
    assert held.is_beyond
    assert held.sentence.startswith("demo.t: quality gates hold back 9 windows, the first 2013-12-30T00: -7. Correct ")
    assert "-8" not in held.sentence, "the findings of many windows would hide what to do"
    command = shlex.split(held.sentence.split("`")[1])
    assert command[:2] == ["frazil", "partitions"]
    given = partitions.make_context("partitions", command[2:]).params
    assert (given["table"], given["held"], given["reason"]) == ("demo.t", "2013-12-30T00", "why")
    day = WaitingDay(date(2013, 12, 30), "1", NOW_MS)
    assert of((aggregation_reading("a", "demo.d", [], timedelta(hours=2)),)) == [False]
    assert (
        "demo.d is missing 2013-12-30 (complete since"
        in aggregation_reading("a", "demo.d", [day], timedelta(hours=2)).sentence
    )
    assert of(tuple(runs_reading("d", failed, 1) for failed in (None, 0, 1, 2))) == [False, False, False, True]
    assert runs_reading("d", 0, 1).is_clear
    assert runs_reading("d", None, 1).shown == "unknown"


STREAM = """
name: made
source: {topics: [made], bootstrap-servers: "127.0.0.1:1"}
table: demo.made
schema: {at: timestamptz}
event-time: at
"""


FINGERPRINT = validate_stream(yaml.safe_load(STREAM), Path("made.yaml")).fingerprint()


def end(n: int, *, at_ms: int, code: int = 20, **changes: Any) -> ExitRecord:
    values = {"committed": False, "error": "StaleBatch: no plan", **changes}
    return ExitRecord(f"l{n}", code, at_ms - 1_000, at_ms, FINGERPRINT, 0, **values)


def test_a_stream_is_observed_in_its_run_folder_and_its_table(frazil_home: Path, tmp_path: Path) -> None:
    (tmp_path / "made.yaml").write_text(STREAM)
    spec = load_stream(tmp_path / "made.yaml")
    never = observe(spec, now_ms=NOW_MS)
    assert (never.alive, never.writer.ended_at_ms, never.desired) == (False, None, "running"), "nobody ever started it"
    made = MadeStream(spec, time.time_ns() // 1_000_000, partitions=1)
    made.begin()
    quiet = observe(spec, now_ms=NOW_MS)
    assert quiet.alive is None, "its marker is there: one may wait for records on another host"
    made.land({0: (0, 10)})
    (snapshot,) = [s for s in made.tables.main.refresh().snapshots() if s.summary and s.summary.get("frazil.records")]
    at_ms = snapshot.timestamp_ms
    elsewhere = observe(spec, "broken", now_ms=at_ms + MINUTE_MS)
    assert (elsewhere.alive, *landed(elsewhere)) == (True, 10, 0), "a writer of another host"
    assert observe(spec, now_ms=at_ms + 600 * MINUTE_MS).alive is None, "that may have ended or not"
    folder = frazil_home / "streams" / "made"
    launch = {
        "id": "l9",
        "kind": "supervised",
        "launched_at_ms": at_ms,
        "writer": {"pid": 2**22 + 1, "started_at_s": 0},
    }
    ends = [
        end(1, at_ms=at_ms - 1), end(2, at_ms=at_ms + 2, committed=True), end(3, at_ms=at_ms + 3),
        end(4, at_ms=at_ms + 4, stopped_for=None), end(9, at_ms=at_ms + 5),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for one in ends:
        append_exit(folder, one)
    (folder / "lock").write_text(json.dumps(launch))
    ended = observe(spec, now_ms=at_ms + MINUTE_MS)
    assert (ended.crashes, ended.writer.ended_at_ms) == (3, at_ms + 5)
    assert "StaleBatch: no plan" in ended.last_words
    assert ended.alive is False
    assert observe(spec, now_ms=at_ms + 61 * MINUTE_MS).crashes == 0, "an hour ago"
    append_exit(folder, end(9, at_ms=at_ms - 1))  # and another host went on
    assert observe(spec, now_ms=at_ms + MINUTE_MS).alive is True
    assert observe(spec, now_ms=at_ms + 600 * MINUTE_MS).alive is None
    heartbeat = Heartbeat(
        "made", 2**22 + 1, "f", Phase.ENDED, at_ms + 7, at_ms + 7, error="OffsetGap: records are gone"
    )
    heartbeat.write(folder)
    (folder / "lock").write_text(json.dumps({**launch, "id": "l10", "kind": "foreground"}))
    foreground = observe(spec, now_ms=at_ms + MINUTE_MS)
    assert foreground.writer.ended_at_ms == at_ms + 7, "which leaves no exit"
    assert foreground.last_words == "The last writer's error: OffsetGap: records are gone."


@pytest.mark.parametrize("supervised", [False, True])
def test_after_a_foreground_writer_the_alert_names_the_dag_if_a_supervisor_once_watched(
    frazil_home: Path, tmp_path: Path, supervised: bool
) -> None:
    (tmp_path / "made.yaml").write_text(STREAM)
    spec = load_stream(tmp_path / "made.yaml")
    made = MadeStream(spec, time.time_ns() // 1_000_000, partitions=1)
    made.begin()
    made.land({0: (0, 10)})
    at_ms = time.time_ns() // 1_000_000
    folder = frazil_home / "streams" / "made"
    folder.mkdir(parents=True, exist_ok=True)
    launch = {"id": "l1", "kind": "foreground", "launched_at_ms": at_ms}
    (folder / "lock").write_text(json.dumps({**launch, "writer": {"pid": 2**22 + 1, "started_at_s": 0}}))
    Heartbeat("made", 2**22 + 1, "f", Phase.ENDED, at_ms + 7, at_ms + 7).write(folder)
    if supervised:
        write_supervision_times(folder, SupervisionTimes().record_step(at_ms - 9, gap_ms=1))
    now_ms = at_ms + 600 * MINUTE_MS
    ended = observe(spec, now_ms=now_ms)
    (alert,) = (r.sentence for r in evaluate_stream_rules(ended, ALERTS, now_ms=now_ms) if r.rule == "writer")
    assert ended.writer.foreground
    assert ("its DAG" in ended.sentence, "`frazil run made`" in ended.sentence) == (supervised, not supervised)
    assert ("frazil_writer_made must be unpaused" in alert) == supervised


def test_a_high_dead_letter_rate_is_reported_once_with_its_reason_until_it_ends(
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    (tmp_path / "made.yaml").write_text(STREAM)
    spec = load_stream(tmp_path / "made.yaml")
    made = MadeStream(spec, time.time_ns() // 1_000_000, partitions=1)
    committer = made.begin()
    samples = tuple(Reject("made", 0, n, "TypeMismatch", "x: secret") for n in (7, 8, 9))
    rejects = Rejects(
        {"TypeMismatch": 60, "InvalidJson": 2}, samples=(*samples, Reject("made", 0, 70, "InvalidJson", ""))
    )
    batch = made.stage([RangeProgress("made", 0, 0, 100, 38, 62, None)], {}, {})
    batch = dataclasses.replace(batch, reasons=count_reasons(rejects))
    assert Journal.from_bytes(batch.to_bytes()) == batch
    assert b"secret" not in batch.to_bytes()
    committer.commit(batch)
    snapshot = made.tables.main.refresh().current_snapshot()
    assert snapshot is not None
    alerts, states = Alerts(dead_letters_per_minute=10), AlertStates()
    reported = []
    for minutes in (1, 4, 6, 61):
        now_ms = snapshot.timestamp_ms + minutes * MINUTE_MS
        seen = evaluate_stream_rules(observe(spec, now_ms=now_ms), alerts, now_ms=now_ms)
        seen = tuple(r for r in seen if r.rule.startswith("dead-letters:"))
        step = evaluate_readings(states, "stream made", seen, alerts, now_ms=now_ms)
        states = step.states
        reported.append(([a.sentence for a in step.fired], len(step.active), [a.sentence for a in step.resolved]))
    fired = (
        "stream made produces 30 TypeMismatch dead letters a minute, more than 10: 60 in 2 minutes, 60.0 % of the "
        "records that it committed. Examples: made[0]@7, made[0]@8, made[0]@9. `frazil dlq show made --reason "
        "TypeMismatch` shows them"
    )
    over = "stream made: the alert dead-letters:TypeMismatch is over: 0 in 5 minutes, 0.0 % of the records"
    assert reported == [([fired], 1, []), ([], 1, []), ([], 0, [over]), ([], 0, [])]
    undeclared = evaluate_stream_rules(observe(spec, now_ms=snapshot.timestamp_ms), ALERTS, now_ms=NOW_MS)
    assert not [r for r in undeclared if r.rule.startswith("dead-letters:")]


def test_places_of_dead_letters_are_left_out_of_a_summary_that_would_be_long() -> None:
    long = tuple(Reject("t" * 249, 0, n, f"Class{n}", "") for n in range(20))
    reasons = count_reasons(Rejects({f"Class{n}": n + 1 for n in range(20)}, samples=long))
    assert parse_reasons(reasons_summary(reasons)) == {name: Reason(of.count) for name, of in reasons.items()}
    assert parse_reasons({}) == parse_reasons({"frazil.rejected-by": "[1]"}) == {}


def test_an_idle_writer_that_lives_longer_than_its_crashed_predecessors_resolves_their_alert(
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "made.yaml").write_text(STREAM)
    exits = tuple(end(n, at_ms=NOW_MS - (9 - n) * MINUTE_MS) for n in range(5))  # each lived for a second

    def fruitless(*, lived_ms: int, lag: int) -> int:
        since_ms = NOW_MS - lived_ms
        launch = Launch("l9", LaunchKind.SUPERVISED, since_ms, FINGERPRINT)
        heartbeat = Heartbeat("made", 1, "f", Phase.WAITING, NOW_MS, since_ms, 3, 7, lag=lag)
        seen = Observation(ProcessState.RUNNING, launch, heartbeat, exits)
        monkeypatch.setattr(LocalLauncher, "observe", lambda _: seen)
        return observe(load_stream(tmp_path / "made.yaml"), now_ms=NOW_MS).crashes

    assert (fruitless(lived_ms=900, lag=0), fruitless(lived_ms=1_100, lag=0)) == (5, 0)
    assert fruitless(lived_ms=1_100, lag=1) == 5, "there is something to commit"


def test_a_stall_is_observed_while_its_writer_lives_and_becomes_an_alert_after_the_hold_time(
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "made.yaml").write_text(STREAM)
    heartbeat = Heartbeat("made", 1, "f", Phase.WAITING, NOW_MS, NOW_MS, stall=STALL)

    def seen(process: ProcessState, *, later_ms: int = 0) -> Stall | None:
        monkeypatch.setattr(LocalLauncher, "observe", lambda _: Observation(process, None, heartbeat, ()))
        return observe(load_stream(tmp_path / "made.yaml"), now_ms=NOW_MS + later_ms).stall

    assert (seen(ProcessState.RUNNING), seen(ProcessState.FOREGROUND)) == (STALL, STALL)
    assert (seen(ProcessState.ENDED), seen(ProcessState.RUNNING, later_ms=MINUTE_MS)) == (None, None)

    states, fired = AlertStates(), []
    for minutes, stall in ((0, STALL), (1, STALL), (2, None)):
        now_ms = NOW_MS + minutes * MINUTE_MS
        found = evaluate_stream_rules(state(stall=stall), ALERTS, now_ms=now_ms)
        made = evaluate_readings(states, "stream s", found, ALERTS, now_ms=now_ms)
        states = made.states
        fired.append(([a.rule for a in made.active], [a.rule for a in made.resolved]))
    assert fired == [([], []), (["stall"], []), ([], ["stall"])]


def test_a_watermark_that_does_not_move_is_an_alert_only_after_the_hold() -> None:
    watermark = dataclasses.replace(STALL, kind=StallKind.WATERMARK)
    holds = {
        one.rule: one.hold_ms
        for stall in (watermark, STALL)
        for one in evaluate_stream_rules(state(stall=stall), ALERTS, now_ms=NOW_MS)
        if one.is_beyond and one.hold_ms is not None
        for one in [dataclasses.replace(one, rule=stall.kind)]
    }
    assert holds == {StallKind.WATERMARK: 15 * MINUTE_MS, StallKind.OFFSETS: 45_000}


def test_a_never_launched_writer_has_15_minutes_and_one_with_an_unknown_end_has_one_minute() -> None:
    ended = WriterProcess(ProcessState.ENDED)
    holds = [
        one.hold_ms
        for process in (WriterProcess(ProcessState.NEVER_LAUNCHED), ended, dataclasses.replace(ended, ended_at_ms=1))
        for one in evaluate_stream_rules(dataclasses.replace(state(alive=False), writer=process), ALERTS, now_ms=NOW_MS)
        if one.rule == "writer" and one.is_beyond
    ]
    assert holds == [15 * MINUTE_MS, MINUTE_MS, 0]


def test_an_unresponsive_service_is_one_alert_instead_of_one_for_each_symptom() -> None:
    away = {"state": State.KAFKA_UNREACHABLE, "sentence": "Kafka does not answer", "unreachable_since_ms": NOW_MS}
    signs = {"alive": False, "ended_at_ms": NOW_MS - 9 * MINUTE_MS, "crashes": 9}
    assert set(beyond(state(**signs))) == {"writer", "restarts"}
    assert set(beyond(state(**signs, **away))) == {"stall"}


@pytest.mark.parametrize(("pid", "rule"), [(None, "unmeasured"), (7, "stall")])
def test_an_unreadable_table_is_a_stall_only_of_a_writer_that_runs(pid: int | None, rule: str) -> None:
    unread = "the table cannot be read: CommitUnavailable: the catalog 'lake' cannot be reached"
    process = WriterProcess(ProcessState.RUNNING if pid else ProcessState.NEVER_LAUNCHED, pid=pid)
    signs = {"state": State.TABLE_UNREADABLE, "sentence": unread, "table_exists": None}
    one = dataclasses.replace(state(alive=None, **signs), writer=process)
    (reading,) = (r for r in evaluate_stream_rules(one, ALERTS, now_ms=NOW_MS) if r.is_beyond)
    assert (reading.rule, reading.sentence, reading.hold_ms) == (rule, f"stream s: {unread}", 45_000)


def test_a_given_up_writer_is_an_immediate_alert_until_a_writer_is_started(frazil_home: Path, tmp_path: Path) -> None:
    (tmp_path / "made.yaml").write_text(STREAM)
    spec, now_ms = load_stream(tmp_path / "made.yaml"), time.time_ns() // 1_000_000
    folder = frazil_home / "streams" / "made"
    folder.mkdir(parents=True)
    append_exit(folder, end(9, at_ms=now_ms - 1_000, code=11))
    (folder / "lock").write_text(json.dumps(dataclasses.asdict(Launch("l9", LaunchKind.SUPERVISED, now_ms - 2_000))))
    confirm_given_up("made", "l9", reason="5 crashes without one commit", table_fingerprint=None)

    def alerts_now() -> list[str]:
        seen = evaluate_stream_rules(observe(spec, now_ms=now_ms), ALERTS, now_ms=now_ms)
        fired = evaluate_readings(AlertStates(), "stream made", seen, ALERTS, now_ms=now_ms).fired
        return [alert.sentence for alert in fired if alert.rule == "writer"]

    (sentence,) = alerts_now()
    assert sentence.startswith("stream made has no writer, and its supervisor gave up: 5 crashes without one commit.")
    (folder / "lock").write_text(json.dumps(dataclasses.asdict(Launch("l10", LaunchKind.SUPERVISED, now_ms))))
    assert alerts_now() == []


def test_no_alert_of_a_stream_is_over_while_its_table_or_its_run_folder_cannot_be_read(
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "made.yaml").write_text(STREAM)
    spec = load_stream(tmp_path / "made.yaml")
    rules = {"table", "waiting-batches", "dead-letters", "stale-changes", "restarts", "registry", "stall"}
    rules |= {"dead-letters:TypeMismatch"}
    before = AlertStates({rule: AlertState(NOW_MS, active=True) for rule in rules})

    def refuse(*_: object) -> None:
        raise OSError("the catalog is out of reach")

    monkeypatch.setattr("frazil.status.table.load_stream_table", refuse)
    monkeypatch.setattr(LocalLauncher, "observe", refuse)
    seen = evaluate_stream_rules(observe(spec, now_ms=NOW_MS), ALERTS, now_ms=NOW_MS)
    step = evaluate_readings(before, "stream made", seen, ALERTS, now_ms=NOW_MS)

    assert step.resolved == ()
    assert {alert.rule: "is unknown now" in alert.sentence for alert in step.active} == dict.fromkeys(rules, True)
    (unmeasured,) = (reading for reading in seen if reading.rule == "unmeasured")
    assert unmeasured.is_beyond
    assert "the run folder of stream made cannot be read" in unmeasured.sentence
    assert "the catalog is out of reach" in unmeasured.sentence


def test_a_pause_ends_the_alert_of_a_writer_that_was_given_up() -> None:
    assert beyond(state(alive=False, desired="paused", given_up="it broke")) == {}


def test_the_dead_letter_share_of_a_quiet_stream_covers_at_most_100_records_and_a_day(
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    (tmp_path / "made.yaml").write_text(STREAM)
    spec = load_stream(tmp_path / "made.yaml")
    begin_ms = time.time_ns() // 1_000_000
    made = MadeStream(spec, begin_ms, partitions=1)
    made.begin()

    def rejects(count: int, hour: int, rejected: int) -> tuple[tuple[int, int], str | None]:
        """Land 30 records in this hour, and return the numbers measured, and the alert."""
        made.now_ms = begin_ms + hour * 60 * MINUTE_MS
        start = 30 * count
        made.land({0: (start, start + 30)}, rejected={0: range(start, start + rejected)})
        seen = observe(spec, now_ms=made.now_ms + MINUTE_MS)
        return landed(seen), beyond(seen).get("dead-letters")

    shown = []
    for count, (hour, rejected) in enumerate([(1, 0), (2, 20), (4, 30), (6, 30), (29, 30)]):
        shown.append(rejects(count, hour, rejected))
    numbers, alerts = zip(*shown, strict=True)
    assert numbers == ((30, 0), (60, 20), (90, 50), (120, 80), (60, 60))
    assert alerts[0] is alerts[1] is None, "20 of 60 are few"
    assert alerts[2] is not None
    assert "80 of the 120 records that stream made committed within the last 5 h" in (alerts[3] or "")
    assert "60 of the 60 records that stream made committed within the last 24 h" in (alerts[4] or "")
    table = made.tables.main.refresh()
    for snapshot in table.metadata.snapshots[:-1]:
        table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
        table = made.tables.main.refresh()
    made.now_ms += 9 * MINUTE_MS
    seen = observe(spec, now_ms=made.now_ms)
    assert "30 of the 30 records that stream made committed within the last 9 min" in beyond(seen)["dead-letters"]
