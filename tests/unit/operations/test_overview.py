"""The overview: one word per stream, with streams that need attention first."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from frazil.cli.status import _detail_fields
from frazil.errors import Failure, brokers_remedy
from frazil.host.heartbeat import Stall, StallKind
from frazil.operations.overview import (
    GRACE_MS,
    ActiveAlert,
    Health,
    OpenProblem,
    OverviewLine,
    RelatedState,
    StreamReading,
    Windows,
    build_headline,
    build_line,
    combine_health,
    group_by_stream,
    sort_lines,
)
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from frazil.status.derive import refine_state
from frazil.status.freshness import freshness_limit_ms
from frazil.status.recent_commits import RecentCommits
from frazil.status.state import Level, State, StreamState, WriterProcess
from frazil.supervise.decision import SupervisionPolicy
from tests.alerts_page import RULES

POLICY = SupervisionPolicy()
NOW_MS = 1_700_000_000_000
RUNS = WriterProcess("running", pid=7, phase="waiting", heartbeat_at_ms=NOW_MS)
ENDED = WriterProcess("ended", exit_code=70, exit_name="CommitUnavailable", ended_at_ms=NOW_MS - 1000)
ENDED_WELL = WriterProcess("ended", exit_code=0, ended_at_ms=NOW_MS - 1000, epoch=1)
LONG_MS = NOW_MS - POLICY.max_backoff_ms - 1
LONG_ENDED = replace(ENDED_WELL, ended_at_ms=LONG_MS)


DECLARED: dict[str, Any] = {
    "name": "ticks",
    "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
    "table": "demo.ticks",
    "schema": {"ts": "timestamptz not null"},
    "event-time": "ts",
    "maintenance": {"alerts": {"freshness": "5m"}},
}
SPEC = validate_stream(DECLARED, Path("ticks.yaml"))


@pytest.fixture
def spec() -> StreamSpec:
    return SPEC


def status(now_ms: int = NOW_MS, **changes: Any) -> StreamState:
    values: dict[str, Any] = {
        "name": "ticks", "table": "demo.ticks", "state": State.RUNNING, "desired": "running", "writer": RUNS,
        "epoch": 1, "batch": 3, "lag": 0, "backpressure_ms": 0, "last_commit_at_ms": NOW_MS - 1000,
        "watermark_ms": None, "snapshot_id": 2**62, "table_exists": True, "rows": 10, "problems": (),
    }  # fmt: skip
    return refine_state(StreamState(**values | changes), SPEC, now_ms=now_ms)


OLD_MS = NOW_MS - 3_600_000
STALL = Stall(StallKind.WATERMARK, OLD_MS, "ticks-3", "ticks-3 holds the watermark back")
PAUSING = {"state": State.STOPPING, "desired": "paused", "desired_reason": "upgrade"}
PAUSED = {**PAUSING, "state": State.PAUSED}
CASES: list[tuple[dict[str, Any], str, Level]] = [
    ({}, "running", Level.WELL),
    ({"last_commit_at_ms": OLD_MS}, "running", Level.WELL),  # nothing waits
    ({"last_commit_at_ms": OLD_MS, "lag": 5}, "late", Level.TROUBLE),
    ({"last_commit_at_ms": OLD_MS, "lag": None}, "late", Level.TROUBLE),
    ({"backpressure_ms": 4000}, "slow", Level.QUIET),
    ({"backpressure_ms": 34_000}, "slow", Level.TROUBLE),
    ({"stall": STALL}, "stalled", Level.TROUBLE),
    ({"stall": replace(STALL, since_ms=NOW_MS - 60_000)}, "stalled", Level.QUIET),
    ({"writer": replace(RUNS, stale=True), "problems": (Failure("no heartbeat"),)}, "silent", Level.TROUBLE),
    ({"problems": (Failure("the catalog is slow"),)}, "has a problem", Level.TROUBLE),
    (PAUSING, "pausing", Level.QUIET),
    ({"state": State.STOPPING}, "restarting", Level.QUIET),
    ({**PAUSED, "writer": replace(ENDED, exit_code=0)}, "paused", Level.QUIET),
    ({**PAUSED, "writer": ENDED, "lag": 5, "last_commit_at_ms": OLD_MS}, "paused", Level.QUIET),
    ({"writer": ENDED}, "stopped", Level.BROKEN),
    ({"state": State.CRASH_LOOPING, "crashes": 3}, "crash-looping", Level.BROKEN),
    ({"state": State.KAFKA_UNREACHABLE, "unreachable_since_ms": OLD_MS}, "Kafka unreachable", Level.TROUBLE),
    ({"state": State.OUTAGE, "sentence": "demo.a is behind"}, "waits for catalog or storage", Level.TROUBLE),
    ({"state": State.CATALOG_UNAVAILABLE, "unreachable_since_ms": OLD_MS}, "catalog unavailable", Level.TROUBLE),
    ({"state": State.STORAGE_UNAVAILABLE, "unreachable_since_ms": OLD_MS}, "storage unavailable", Level.TROUBLE),
    ({"crashes": 2}, "running", Level.WELL),
    ({"writer": ENDED, "state": State.GIVEN_UP, "crashes": 9}, "given up", Level.BROKEN),
    ({"table_exists": None, "problems": (Failure("no catalog"),)}, "table unreadable", Level.BROKEN),
    ({"table_exists": False, "missing": "the table is lost"}, "no table", Level.BROKEN),
    ({"writer": WriterProcess("never launched")}, "commits elsewhere", Level.WELL),
    ({"writer": WriterProcess("never launched"), "lag": 5, "last_commit_at_ms": OLD_MS}, "late", Level.TROUBLE),
    ({"writer": WriterProcess("never launched"), "last_commit_at_ms": OLD_MS}, "stopped", Level.TROUBLE),
    ({"writer": ENDED_WELL, "lag": 82}, "starting", Level.QUIET),
    ({"writer": LONG_ENDED, "lag": 82, "last_commit_at_ms": LONG_MS - 1}, "stopped", Level.TROUBLE),
    ({"writer": LONG_ENDED, "last_commit_at_ms": LONG_MS - 1, "desired_at_ms": NOW_MS - 9}, "starting", Level.QUIET),
    ({"writer": LONG_ENDED, "commit_epoch": 2}, "commits elsewhere", Level.WELL),
    (
        {"writer": WriterProcess("never launched"), "table_exists": False, "last_commit_at_ms": None, "rows": None},
        "not begun",
        Level.QUIET,
    ),
]


@pytest.mark.parametrize(
    ("changes", "word", "level"), CASES, ids=[f"{i}-{word}" for i, (_, word, _) in enumerate(CASES)]
)
def test_the_state_of_a_stream_is_one_word(changes: dict[str, Any], word: str, level: Level):
    found = status(**changes)
    assert (found.state, found.level) == (word, level)
    if level <= Level.TROUBLE:
        assert found.sentence


def test_a_new_record_of_a_quiet_stream_is_not_late_before_the_freshness_limit(spec: StreamSpec):
    """The last commit is an hour old, because no record came."""

    def line(waited_ms: int, **changes: Any) -> OverviewLine:
        waits = status(lag=5, last_commit_at_ms=OLD_MS, caught_up_at_ms=NOW_MS - waited_ms, **changes)
        return build_line("ticks", spec, StreamReading(waits, NOW_MS), RelatedState(), now_ms=NOW_MS)

    assert (line(7_000).word, line(7_000).level, line(7_000).freshness_ms) == ("running", Level.WELL, 7_000)
    promised_ms = freshness_limit_ms(spec)
    assert line(promised_ms).word == "running"
    late = line(promised_ms + 1_000)
    assert (late.word, late.level) == ("late", Level.TROUBLE)
    said = "the oldest of 5 waiting records has waited for 5 min 1 s; the last commit was 1 h 0 min ago"
    assert late.needs[0].sentence == said


def test_a_backlog_is_reported_late_while_commits_continue():
    behind = status(lag=1, last_commit_at_ms=NOW_MS - 1_000, caught_up_at_ms=OLD_MS)
    assert (behind.state, behind.sentence) == (
        "late",
        "1 record has waited for 1 h 0 min; the last commit was 1.0 s ago",
    )


def test_a_state_from_before_the_page_started_is_marked_and_a_rate_has_its_period(spec: StreamSpec):
    known = status(recent_commits=RecentCommits(2.5, (1, 2), 3, rate_ms=180_000))
    for last_known in (True, False):
        reading = StreamReading(known, NOW_MS, last_known=last_known)
        line = build_line("ticks", spec, reading, RelatedState(), now_ms=NOW_MS)
        assert (line.last_known, line.records_per_s, line.rate_ms) == (last_known, 2.5, 180_000)


def test_an_unresponsive_kafka_is_reported_with_its_address_first():
    silent = Stall(StallKind.KAFKA, NOW_MS - 28_000, None, "Kafka has not answered since 12:00")
    values = {"stall": silent, "problems": (silent.failure, Failure("another"))}
    found = status(state=State.KAFKA_UNREACHABLE, unreachable_since_ms=silent.since_ms, **values)
    for_ms = "Kafka at 127.0.0.1:1 has not answered for 28 s"
    calm = f"{for_ms}; nothing is lost, and the writer continues by itself once it does"
    assert found.sentence == f"{calm}. {brokers_remedy()}"
    assert [*map(str, found.problems)] == [found.sentence, "another"]
    assert (found.state, found.rule) == ("Kafka unreachable", "stall")


def test_the_remedy_of_an_outage_is_shown_once() -> None:
    values = {"state": State.KAFKA_UNREACHABLE, "unreachable_since_ms": NOW_MS}
    unknown = Failure("Connection refused", brokers_remedy(), about="the lag is unknown")
    found = status(problems=(unknown,), **values)
    assert [*map(str, found.problems)] == [found.sentence, "the lag is unknown: Connection refused"]
    assert brokers_remedy() in found.sentence


@pytest.mark.parametrize(
    ("value", "shown"), [("k:9092", "k:9092"), ("", "${env:FRAZIL_KAFKA}"), ("a:b@k:9092", "${env:FRAZIL_KAFKA}")]
)
def test_brokers_of_a_variable_are_named_by_its_value_unless_it_may_have_credentials(
    monkeypatch: pytest.MonkeyPatch, value: str, shown: str
) -> None:
    monkeypatch.setenv("FRAZIL_KAFKA", value)
    source = {**DECLARED["source"], "bootstrap-servers": "${env:FRAZIL_KAFKA}"}
    spec = validate_stream({**DECLARED, "source": source}, Path("ticks.yaml"))
    known = replace(status(), state=State.KAFKA_UNREACHABLE, unreachable_since_ms=NOW_MS)
    assert f"Kafka at {shown} has not answered" in refine_state(known, spec, now_ms=NOW_MS).sentence


def test_an_unreadable_table_is_reported_before_the_stall_that_it_causes():
    behind = replace(STALL, kind=StallKind.OFFSETS)
    unread = Failure("the catalog 'lake' does not answer")
    found = status(table_exists=None, stall=behind, unread=unread, problems=(behind.failure, unread))
    assert (found.state, found.sentence) == ("table unreadable", str(unread))


def test_a_writer_that_was_just_started_again_is_described_by_the_error_of_the_last_one():
    values = {"unreachable_since_ms": NOW_MS - 60_000, "sentence": "pid 7 was launched 0.0 s ago"}
    gone = status(
        state=State.TOPIC_MISSING, last_error=Failure("the topic ticks does not exist", error="TopicMissing"), **values
    )
    assert gone.sentence == "the topic ticks does not exist; the writer has been trying again for 1 min 0 s"


def test_every_observed_state_has_a_word_and_one_that_needs_attention_has_a_reason(spec: StreamSpec):
    writers = [RUNS, replace(RUNS, stale=True), ENDED, WriterProcess("unknown")]
    choices = product(
        writers,
        [State.RUNNING, State.CRASH_LOOPING, State.STOPPED, State.PAUSED, State.UNKNOWN],
        ["running", "paused", None],
        [None, 0, 7],
        [None, OLD_MS, NOW_MS, NOW_MS + 10**9],
        [None, False, True],
        [(), (Failure("something is wrong"),)],
    )
    for writer, state, desired, lag, last_ms, exists, problems in choices:
        one = status(
            writer=writer,
            state=state,
            desired=desired,
            lag=lag,
            last_commit_at_ms=last_ms,
            table_exists=exists,
            problems=problems,
        )
        line = build_line("ticks", spec, StreamReading(one, NOW_MS), RelatedState(), now_ms=NOW_MS)
        assert line.word
        assert bool(line.needs) == (line.level <= Level.TROUBLE)


def test_the_status_of_a_stream_started_only_by_users_names_the_start_command():
    silent = Stall(StallKind.KAFKA, NOW_MS - 28_000, None, "Kafka has not answered since 12:00")
    values = {"state": State.KAFKA_UNREACHABLE, "unreachable_since_ms": silent.since_ms, "stall": silent}
    killed = replace(ENDED, exit_code=137)
    for supervised in (False, True):
        of_user = {"foreground": True, "supervised": supervised}
        for found in (status(writer=replace(RUNS, **of_user), **values), status(writer=replace(killed, **of_user))):
            assert ("`frazil run ticks` starts" in found.sentence) is not supervised, found.sentence


def test_commits_elsewhere_need_evidence_and_a_stream_without_a_writer_is_never_well():
    writers = [WriterProcess("never launched"), WriterProcess("ended"), ENDED_WELL, LONG_ENDED, ENDED]
    writers += [replace(one, epoch=None) for one in (ENDED_WELL, LONG_ENDED)]
    choices = product(
        writers,
        [None, OLD_MS, LONG_MS - 1, LONG_MS + 1, NOW_MS],
        [None, 1, 2],
        ["running", "paused", None],
        [None, OLD_MS, NOW_MS],
        [None, 0, 82],
    )
    for writer, last_ms, epoch, desired, requested_ms, lag in choices:
        found = status(
            writer=writer, last_commit_at_ms=last_ms, commit_epoch=epoch, desired=desired, desired_at_ms=requested_ms,
            lag=lag, state=State.PAUSED if desired == "paused" else State.STOPPED,
        )  # fmt: skip
        of_another = last_ms is not None and (
            not writer.has_ended
            or (epoch > writer.epoch if writer.epoch and epoch else last_ms > (writer.ended_at_ms or NOW_MS))
        )
        assert (found.level is Level.WELL) == (found.state == "commits elsewhere")
        if found.state == "commits elsewhere":
            assert of_another
            assert desired != "paused"
        if writer.has_ended and not writer.exit_code and not of_another and desired != "paused":
            held = NOW_MS - max(writer.ended_at_ms or 0, requested_ms or 0) <= POLICY.max_backoff_ms
            assert (found.state, found.level, found.rule) in {
                ("starting", Level.QUIET, "") if held else ("stopped", Level.TROUBLE, "writer"),
                ("stopped", Level.BROKEN, "writer"),  # without an exit code: it was killed
            }
            assert (found.level is Level.BROKEN) == (writer.exit_code is None and writer.ended_at_ms is not None)
            assert found.level is not Level.TROUBLE or ("82 records wait" in found.sentence) == (lag == 82)


@pytest.mark.parametrize("desired", [PAUSED, PAUSING])
def test_a_paused_stream_shows_who_paused_it_when_and_why(spec: StreamSpec, desired: dict[str, Any]):
    seen = status(**desired, desired_by="ada", desired_at_ms=NOW_MS - 180_000)
    line = build_line("ticks", spec, StreamReading(seen, NOW_MS), RelatedState(), now_ms=NOW_MS)
    assert (line.level, line.needs) == (Level.QUIET, ())
    assert line.notes[0].endswith("paused by ada 3 min 0 s ago: upgrade")
    assert _detail_fields(seen, None, now_ms=NOW_MS)["desired"] == "paused (by ada 3 min 0 s ago: upgrade)"


def test_the_freshness_limit_is_at_least_two_commit_intervals(spec: StreamSpec):
    assert freshness_limit_ms(spec) == 300_000
    slow = spec.model_copy(update={"commit": spec.commit.model_copy(update={"interval": spec.commit.interval * 60})})
    assert freshness_limit_ms(slow) == 2 * 3_600_000


def test_a_notice_of_a_writer_is_a_note_on_its_overview_line(spec: StreamSpec):
    notice = "no column takes a field of 82 records, such as {payload, schema}"
    line = build_line("ticks", spec, StreamReading(status(notices=(notice,)), NOW_MS), RelatedState(), now_ms=NOW_MS)
    assert (line.level, line.needs, line.notes) == (Level.WELL, (), (notice,))


def test_a_catalog_that_has_been_silent_for_long_needs_attention_and_the_last_numbers_stay(spec: StreamSpec):
    before = status(lag=7, recent_commits=RecentCommits(2.5, (1, 2), 3))
    reading = StreamReading(before, OLD_MS, silent_since_ms=NOW_MS - GRACE_MS)
    line = build_line("ticks", spec, reading, RelatedState(), now_ms=NOW_MS)
    assert (line.word, line.level, line.lag, line.records_per_s) == ("no answer", Level.TROUBLE, 7, 2.5)
    said = "The catalog default, its storage, or Kafka has not responded since 2023-11-14 22:13:10Z"
    assert said in line.needs[0].sentence


def test_a_slow_check_shows_the_last_known_state_or_no_answer_and_needs_no_attention_yet(spec: StreamSpec):
    slow_ms = NOW_MS - GRACE_MS + 1
    known = build_line(
        "ticks", spec, StreamReading(status(), OLD_MS, silent_since_ms=slow_ms), RelatedState(), now_ms=NOW_MS
    )
    assert (known.word, known.level) == ("running", Level.WELL)
    new = build_line("ticks", spec, StreamReading(silent_since_ms=slow_ms), RelatedState(), now_ms=NOW_MS)
    assert (new.word, new.level, new.needs) == ("no answer", Level.UNKNOWN, ())
    assert "has not responded since" in new.notes[0]


@pytest.mark.parametrize("silent_since_ms", [None, NOW_MS - 1300])
def test_a_status_not_checked_for_minutes_is_shown_as_it_was_then(spec: StreamSpec, silent_since_ms: int | None):
    waits = {"lag": 5, "last_commit_at_ms": OLD_MS - 1000}
    reading = StreamReading(status(OLD_MS, **waits), OLD_MS, silent_since_ms=silent_since_ms)
    line = build_line("ticks", spec, reading, RelatedState(), now_ms=NOW_MS)
    assert (line.word, line.level, line.freshness_ms, line.at_ms) == ("running", Level.WELL, 1000, OLD_MS)
    assert (
        build_line(
            "ticks", spec, replace(reading, status=status(**waits), at_ms=NOW_MS), RelatedState(), now_ms=NOW_MS
        ).word
        == "late"
    )


def test_a_stream_that_was_never_checked_is_shown_as_loading(spec: StreamSpec):
    line = build_line("ticks", spec, StreamReading(), RelatedState(), now_ms=NOW_MS)
    assert (line.word, line.level, line.needs) == ("loading", Level.UNKNOWN, ())


def test_a_failed_check_is_reported(spec: StreamSpec):
    line = build_line("ticks", spec, StreamReading(problem="OSError: no space"), RelatedState(), now_ms=NOW_MS)
    assert (line.level, line.needs) == (Level.BROKEN, (OpenProblem("OSError: no space", "docs/runbook.md#unmeasured"),))


def test_a_declaration_problem_is_described_as_of_this_file_another_file_or_the_last_check(spec: StreamSpec):
    def needs(reading: StreamReading) -> tuple[OpenProblem, ...]:
        line = build_line("ticks", spec, reading, RelatedState(), now_ms=NOW_MS)
        assert (line.word, line.level) == ("running", Level.TROUBLE)
        return line.needs

    runbook = "docs/runbook.md#declaration"
    lines = [f"ticks.yaml: {key}: is missing" for key in ("name", "table", "schema", "source", "mode", "a", "b")]
    said = "The last valid declaration is in use, because the file has a problem"
    both = needs(StreamReading(status(), NOW_MS, broken="\n".join(lines[:2])))
    assert both == tuple(OpenProblem(f"{said}: {line}", runbook) for line in lines[:2])
    *_, more = needs(StreamReading(status(), NOW_MS, broken="\n".join(lines)))
    assert more == OpenProblem("2 more errors: run `frazil validate`", runbook)
    never_valid = StreamReading(broken="\n".join(lines))
    *_, last, more = build_line("ticks", None, never_valid, RelatedState(), now_ms=NOW_MS).needs
    assert (last.sentence, more.sentence) == (lines[4], "2 more errors: run `frazil validate`")
    (need,) = needs(StreamReading(status(), NOW_MS, conflict="ticks.yaml: table: is in another catalog in a.yaml"))
    said = "The declaration is in use, but conflicts with another: ticks.yaml: table: is in another catalog in a.yaml"
    assert need == OpenProblem(said, runbook)
    waits = status(OLD_MS, lag=5, last_commit_at_ms=OLD_MS - 1000)  # it was not late when it was seen
    (need,) = needs(StreamReading(waits, OLD_MS, problem="OSError: gone"))
    said = "The stream's state could not be read since 2023-11-14 21:13:20Z; an older state is shown: OSError: gone"
    assert need == OpenProblem(said, "docs/runbook.md#unmeasured")


def test_a_file_that_is_broken_does_not_make_the_stream_unreadable_while_it_is_checked(spec: StreamSpec):
    line = build_line(
        "ticks", spec, StreamReading(broken="ticks.yaml: name: is missing"), RelatedState(), now_ms=NOW_MS
    )
    assert (line.word, line.level, len(line.needs)) == ("loading", Level.TROUBLE, 1)


def test_an_unreadable_table_is_not_reported_as_in_shape(spec: StreamSpec):
    around = RelatedState(health=Health(Level.WELL, "in shape"))
    unreadable = status(table_exists=None, problems=(Failure("no catalog"),))
    for reading in (
        StreamReading(unreadable, NOW_MS),
        StreamReading(problem="OSError: gone"),
        StreamReading(status(), OLD_MS, outdated="restart"),
    ):
        assert build_line("ticks", spec, reading, around, now_ms=NOW_MS).health is None
    assert build_line("ticks", spec, StreamReading(status(), NOW_MS), around, now_ms=NOW_MS).health == around.health


def test_after_a_change_of_frazil_the_server_asks_for_a_restart_and_blames_no_table(spec: StreamSpec):
    for before in (None, status()):
        line = build_line(
            "ticks", spec, StreamReading(before, OLD_MS, outdated="restart it"), RelatedState(), now_ms=NOW_MS
        )
        assert (line.word, line.level, line.needs) == ("restart needed", Level.TROUBLE, (OpenProblem("restart it"),))


def test_a_stream_with_unreadable_windows_is_not_shown_as_healthy(spec: StreamSpec) -> None:
    around = RelatedState(windows_problem="SpecError: the signals of demo.ticks are damaged")
    line = build_line("ticks", spec, StreamReading(status(), NOW_MS), around, now_ms=NOW_MS)
    assert line.level is Level.TROUBLE
    (need,) = line.needs
    assert need.sentence.startswith("Cannot read the table's windows, so complete and held windows are unknown: Spec")
    unread = build_line("ticks", spec, StreamReading(status(table_exists=None), NOW_MS), around, now_ms=NOW_MS)
    assert not any("windows" in need.sentence for need in unread.needs), "the table's own problem is said once"


def test_a_paused_dag_is_named_as_the_reason_only_if_no_writer_runs(
    spec: StreamSpec,
):
    around = RelatedState(paused_dag="frazil_writer_ticks")

    def dags(**changes: Any) -> list[str]:
        line = build_line("ticks", spec, StreamReading(status(**changes), NOW_MS), around, now_ms=NOW_MS)
        return [need.dag for need in line.needs if need.dag]

    gone = WriterProcess("never launched")
    assert dags(writer=gone, last_commit_at_ms=OLD_MS) == dags(writer=ENDED) == ["frazil_writer_ticks"]
    stopped = replace(ENDED, exit_code=0)
    assert dags() == dags(writer=gone) == dags(**PAUSED, writer=stopped) == dags(problems=(Failure("slow"),)) == []


def test_a_declaration_that_was_never_valid_is_broken_and_each_of_its_errors_needs_attention():
    line = build_line(
        "ticks", None, StreamReading(broken="a: is missing\nb: is missing"), RelatedState(), now_ms=NOW_MS
    )
    needs = tuple(OpenProblem(f"{name}: is missing", "docs/runbook.md#declaration") for name in "ab")
    assert (line.word, line.needs) == ("declaration broken", needs)


def test_held_windows_and_alerts_need_attention_even_where_the_stream_runs(spec: StreamSpec):
    alert = ActiveAlert("demo.ticks", "manifests", OLD_MS, "demo.ticks has 900 manifests", "https://team/run#manifests")
    around = RelatedState(Windows("hour", "2023-11-14T22:00:00Z", "", ("2023-11-14T20", "2023-11-14T21")), (alert,))
    line = build_line("ticks", spec, StreamReading(status(), NOW_MS), around, now_ms=NOW_MS)
    assert (line.word, line.level) == ("running", Level.TROUBLE)
    assert line.needs[0].sentence.startswith("A quality gate holds the window 2023-11-14T20 and 1 more")
    assert line.needs[0].runbook == "docs/runbook.md#held"
    assert line.needs[1] == OpenProblem(alert.sentence, "https://team/run#manifests")


def test_held_windows_are_said_once_and_without_all_findings_of_the_alert(spec: StreamSpec):
    windows = Windows("hour", None, "", held=("2013-12-30T15",))
    said, findings = "A quality gate holds the window 2013-12-30T15", "quality gates hold 1 window: 7 of 7 rows"
    alert = ActiveAlert("windows of demo.ticks", "held", OLD_MS, findings, "https://team/run#held")
    for known, alerts, shown in ((windows, (), said), (windows, (alert,), said), (None, (alert,), findings)):
        line = build_line("ticks", spec, StreamReading(status(), NOW_MS), RelatedState(known, alerts), now_ms=NOW_MS)
        (need,) = line.needs
        assert need.sentence.startswith(shown)
        assert need.runbook == (alert.runbook if alerts else "docs/runbook.md#held")


def test_an_alert_that_repeats_the_stall_of_a_stream_is_not_shown_again(spec: StreamSpec):
    same = ActiveAlert("stream ticks", "stall", OLD_MS, f"the writer of stream ticks is stalled: {STALL.reason}")
    other = ActiveAlert("demo.ticks", "manifests", OLD_MS, "demo.ticks has 900 manifests")
    line = build_line(
        "ticks", spec, StreamReading(status(stall=STALL), NOW_MS), RelatedState(None, (same, other)), now_ms=NOW_MS
    )
    assert [need.sentence for need in line.needs] == [STALL.reason, other.sentence]


def test_the_reason_for_giving_up_a_stream_is_reported_once(spec: StreamSpec):
    ended = replace(ENDED, error=Failure("no key"))
    problems = ("the last writer ended: no key", "the supervisor gave up 7 min ago")
    alert = ActiveAlert("stream ticks", "writer", OLD_MS, "stream ticks has no writer: no key")
    reading = StreamReading(
        status(writer=ended, state=State.GIVEN_UP, problems=(*map(Failure, problems), Failure("the lag is unknown"))),
        NOW_MS,
    )
    line = build_line("ticks", spec, reading, RelatedState(None, (alert,)), now_ms=NOW_MS)
    assert [need.sentence for need in line.needs] == ["; ".join(problems), "the lag is unknown"]


def test_a_table_name_used_in_two_catalogs_is_shown_with_its_catalog(spec: StreamSpec):
    around = RelatedState(names={"demo.ticks": "far.demo.ticks"})
    assert build_line("ticks", spec, StreamReading(status(), NOW_MS), around, now_ms=NOW_MS).table == "far.demo.ticks"
    assert (
        build_line("ticks", spec, StreamReading(status(), NOW_MS), RelatedState(), now_ms=NOW_MS).table == "demo.ticks"
    )


def test_every_state_that_needs_attention_points_to_an_entry_of_the_runbook():
    found = [status(**changes) for changes, _, level in CASES if level <= 1]
    assert {one.rule for one in found} - set(RULES) == {""}  # a problem may be of any kind
    assert {one.state for one in found if not one.rule} == {"has a problem"}


def test_the_overview_sorts_by_urgency_and_then_by_name():
    lines = [
        OverviewLine("a", None, Level.WELL, "running"),
        OverviewLine("d", None, Level.TROUBLE, "late", (OpenProblem("x"),)),
        OverviewLine("c", None, Level.TROUBLE, "late", (OpenProblem("x"), OpenProblem("y"))),
        OverviewLine("b", None, Level.BROKEN, "stopped", (OpenProblem("x"),)),
        OverviewLine("e", None, Level.QUIET, "paused"),
    ]
    assert [line.stream for line in sort_lines(lines)] == ["b", "c", "d", "e", "a"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, ""),
        ({"running": Level.WELL}, "The stream is healthy"),
        ({"running": Level.WELL, "commits elsewhere": Level.WELL}, "All 2 streams are healthy"),
        ({"not begun": Level.QUIET}, "The stream has not started yet"),
        ({"not begun": Level.QUIET, "running": Level.WELL}, "No stream needs attention: 1 of 2 streams are healthy"),
        ({"paused": Level.QUIET}, "The stream is paused"),
        ({"loading": Level.UNKNOWN, "running": Level.WELL}, "Loading 1 stream"),
        ({"late": Level.TROUBLE, "loading": Level.UNKNOWN}, "1 of 2 streams needs attention"),
        ({"late": Level.TROUBLE, "stopped": Level.BROKEN, "paused": Level.QUIET}, "2 of 3 streams need attention"),
    ],
)
def test_the_headline_is_healthy_only_if_each_stream_is(words: dict[str, Level], said: str):
    lines = [OverviewLine(word, None, level, word) for word, level in words.items()]
    assert build_headline(lines) == said


def test_no_stream_is_reported_well_while_its_airflow_needs_attention():
    well = OverviewLine("a", None, Level.WELL, "running")
    dead = ("Airflow's triggerer was stopped",)
    assert build_headline([well], airflow=dead) == build_headline([well, well], airflow=dead)
    assert build_headline([well], airflow=dead) == "No stream needs attention, but Airflow does"
    late = OverviewLine("b", None, Level.TROUBLE, "late")
    assert build_headline([well, late], airflow=dead) == "1 of 2 streams needs attention"
    assert build_headline([], airflow=dead) == ""


def test_an_overview_without_started_streams_does_not_report_that_all_are_well():
    lines = [OverviewLine(name, None, Level.QUIET, "not begun") for name in "abc"]
    assert build_headline(lines) == "None of 3 streams has started yet"


def test_a_stream_without_declared_windows_is_distinguished_from_one_with_unknown_windows(
    spec: StreamSpec,
):
    for complete, has in (("none", False), ("hour", True)):
        declared = spec.model_copy(update={"complete": complete})
        line = build_line("ticks", declared, StreamReading(status(), NOW_MS), RelatedState(), now_ms=NOW_MS)
        assert (line.windows, line.has_windows) == (None, has)


def test_an_alert_is_assigned_to_the_streams_that_it_concerns():
    tables = {"demo.ticks": ["ticks", "more"], "demo.ticks_dead_letters": ["ticks"], "demo.ticks_eu": ["ticks"]}

    def streams(subject: str, rule: str) -> list[str]:
        return sorted(group_by_stream([ActiveAlert(subject, rule, 0, "x")], tables))

    assert streams("demo.ticks", "manifests") == ["more", "ticks"]
    assert streams("demo.ticks", "freshness:more") == ["more"]
    assert streams("stream ticks", "declaration") == ["ticks"]
    assert streams("windows of demo.ticks", "held") == ["more", "ticks"]
    assert streams("demo.ticks_dead_letters", "snapshots") == ["ticks"]
    assert streams("demo.ticks_eu", "small-files") == ["ticks"]
    assert streams("route of ticks", "small-files") == ["ticks"]
    assert streams("aggregation daily", "late") == [""]
    assert streams("the DAG frazil_audits", "runs:frazil_audits") == [""]


def test_a_table_is_shown_as_in_shape_due_for_maintenance_or_with_an_alert():
    shape = ActiveAlert("route of ticks", "small-files", 0, "x")
    writer = ActiveAlert("stream ticks", "unmeasured", 0, "x")
    due = {"demo.ticks": ["compaction", "expiry"], "demo.ticks_eu": ["expiry"], "demo.others": ["manifests"]}
    tables = ["demo.ticks", "demo.ticks_eu"]
    assert combine_health(tables, [shape, writer], due) == Health(Level.TROUBLE, "alert", ("small-files",))
    assert combine_health(tables, [writer], due) == Health(Level.QUIET, "maintenance due", ("compaction", "expiry"))
    assert combine_health(tables, [], dict.fromkeys(tables, ())) == Health(Level.WELL, "in shape")
    assert combine_health(tables, [], {}) == Health(Level.UNKNOWN, "not measured"), "no run of frazil_health had them"
    assert combine_health(tables, [], {"demo.ticks_eu": ["not measured"]}) == Health(Level.UNKNOWN, "not measured")
    assert combine_health(tables, [], None) is None


def test_an_alert_about_a_writer_that_runs_again_is_not_shown_until_it_is_measured_again(spec: StreamSpec):
    def line(rule: str, **changes: Any) -> OverviewLine:
        alert = ActiveAlert("stream ticks", rule, OLD_MS, "stream ticks: Kafka has not answered for 5 min 1 s")
        related = RelatedState(alerts=(alert,))
        return build_line("ticks", spec, StreamReading(status(**changes), NOW_MS), related, now_ms=NOW_MS)

    for rule in ("stall", "writer", "restarts", "registry", "table"):
        assert (line(rule).level, line(rule).needs) == (Level.WELL, ())
    stalled = replace(STALL, since_ms=NOW_MS)
    for active in (
        line("stall", stall=STALL),
        line("stall", stall=stalled),
        line("freshness"),
        line("writer", writer=WriterProcess("never launched")),
    ):
        assert active.level is Level.TROUBLE
        assert [one.sentence for one in active.needs][-1].endswith("5 min 1 s")


def test_a_crash_loop_is_shown_once_although_two_alerts_are_about_it(spec: StreamSpec):
    alerts = [ActiveAlert("stream ticks", rule, OLD_MS, f"the alert {rule}") for rule in ("restarts", "writer", "lag")]
    seen = status(state=State.CRASH_LOOPING, crashes=3, writer=ENDED, problems=(Failure("boom"),))
    line = build_line("ticks", spec, StreamReading(seen, NOW_MS), RelatedState(alerts=alerts), now_ms=NOW_MS)
    assert [one.sentence for one in line.needs] == ["boom", "the alert lag"]


@pytest.mark.parametrize(
    ("writer", "first"),
    [
        (replace(ENDED, error=Failure("the disk is full", "Free it", "OSError")), "OSError: the disk is full. Free it"),
        (
            replace(LONG_ENDED, exit_code=137, error=Failure("it was killed", "See the log")),
            "it was killed; check that",
        ),
        (LONG_ENDED, "its last writer here ended"),
    ],
    ids=["failed", "killed", "ended"],
)
def test_why_a_stream_is_stopped_is_said_once_whatever_its_alerts_say(writer: WriterProcess, first: str):
    alerts = [ActiveAlert("stream ticks", rule, OLD_MS, f"the alert {rule}") for rule in ("writer", "freshness:ticks")]
    error = writer.error and replace(writer.error, about="the last writer ended")
    seen = status(writer=writer, lag=82, last_commit_at_ms=LONG_MS - 1, problems=(error,) if error else ())
    related = RelatedState(alerts=alerts)
    (need,) = build_line("ticks", SPEC, StreamReading(seen, NOW_MS), related, now_ms=NOW_MS).needs
    assert seen.state is State.STOPPED
    assert first in need.sentence


def test_the_errors_of_a_file_are_shown_until_it_is_fixed_whatever_its_alert_says(spec: StreamSpec):
    related = RelatedState(alerts=(ActiveAlert("stream ticks", "declaration", OLD_MS, "the declaration is broken"),))

    def line(**changes: str) -> OverviewLine:
        return build_line("ticks", spec, StreamReading(status(), NOW_MS, **changes), related, now_ms=NOW_MS)

    for changes in ({"broken": "ticks.yaml: no"}, {"conflict": "ticks.yaml: no"}):
        (need,) = line(**changes).needs
        assert need.sentence.endswith("ticks.yaml: no")
    assert (line().needs, line().level) == ((), Level.WELL)
