"""A shared application whose writers read no Kafka: a failure of one stream does not affect the others."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from frazil.application import application as module
from frazil.application import launcher
from frazil.application.application import WriterApplication
from frazil.application.launcher import SharedEngine
from frazil.cli.main import frazil
from frazil.errors import KafkaUnavailable, OffsetGap, SpecError, TopicMissing, WorkerDied, WriterBusy
from frazil.home import run_folder
from frazil.host.exits import ENDED_WITH_APPLICATION
from frazil.host.heartbeat import Heartbeat
from frazil.host.launcher import LaunchRequest, ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.lock import WriterLock
from frazil.host.records import read_exits
from frazil.status.stream import read_stream_state
from frazil.stream.hosting import Hosting
from frazil.supervise.decision import UnreadableState
from frazil.supervise.desired_state import open_desired_store
from frazil.supervise.supervised import Program, SupervisedApplication, SupervisedStream
from frazil.supervise.supervisor import Supervisor
from frazil.table.parallel import DaemonThreads
from tests.polling import eventually
from tests.strict_streams import load_streams

STREAM = """
name: {name}
application: {application}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: {table}
schema: {{ts: timestamptz not null}}
event-time: ts
{extra}
"""


class FakeEngine:
    parallelism = 2

    def __init__(self) -> None:
        self.died = False

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def warm_up(self) -> None: ...

    def ready(self, until: Callable[[], bool]) -> bool:  # noqa: ARG002
        return True

    def check(self) -> None:
        if self.died:
            raise WorkerDied("the JVM died")

    def cancel(self, stream: str) -> None: ...

    def run(self, *_: Any) -> Any:
        raise NotImplementedError


class FakeWriter:
    """Runs until it is stopped, or raises what the test orders for its stream."""

    orders: dict[str, Exception]
    starts: dict[str, int]
    hangs: set[str]

    def __init__(self, spec: Any, *_: Any, **__: Any) -> None:
        self.name, self._stopping = spec.name, threading.Event()

    def run(self) -> None:
        self.starts[self.name] = self.starts.get(self.name, 0) + 1
        while not self._stopping.wait(0.01):
            if (error := self.orders.pop(self.name, None)) is not None:
                raise error

    def stop(self) -> None:
        if self.name not in self.hangs:
            self._stopping.set()


class Shared:
    """An application at work: `until` looks at its streams until something holds."""

    def __init__(self, streams: Path) -> None:
        self.streams, self.engine = streams, FakeEngine()
        self.whole = SharedEngine(self.engine, batches=2)
        self.application = WriterApplication("small", streams, self.whole, "f", Hosting())

    def declare(self, name: str, *, application: str = "small", extra: str = "", table: str = "") -> None:
        table = table or f"demo.{name}"
        text = STREAM.format(name=name, application=application, extra=extra, table=table)
        (self.streams / f"{name}.yaml").write_text(text)

    def until(self, condition: Callable[[], Any]) -> Any:
        def checked() -> Any:
            self.application.check_streams()
            return condition()

        return eventually(checked, within_s=60)

    def runs(self, *names: str) -> bool:
        return all(
            name in self.application.hosted and self.application.hosted[name].launcher.is_running for name in names
        )

    def starts(self, name: str) -> int:
        return FakeWriter.starts.get(name, 0)


@pytest.fixture
def shared(tmp_path: Path, frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:  # noqa: ARG001
    monkeypatch.setattr(module, "Writer", FakeWriter)
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(module, "POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr(launcher, "CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(FakeWriter, "orders", {}, raising=False)
    monkeypatch.setattr(FakeWriter, "starts", {}, raising=False)
    monkeypatch.setattr(FakeWriter, "hangs", set(), raising=False)
    folder = tmp_path / "streams"
    folder.mkdir()
    made = Shared(folder)
    for name in ("a", "b", "c"):
        made.declare(name)
    with made.whole.running():
        yield made
        made.application._end_all()


def test_each_stream_runs_and_is_seen_as_if_it_had_a_process_of_its_own(shared: Shared) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    seen = LocalLauncher("a").observe()
    assert (seen.process, seen.launch and seen.launch.application) == (ProcessState.HOSTED, "small")
    spec = shared.application._streams.declared["a"].spec
    assert spec is not None
    status = read_stream_state(spec, now_ms=seen.launch.launched_at_ms if seen.launch else 0)
    assert status.writer.state == "running in a shared application"
    with pytest.raises(WriterBusy, match="the application small runs the writer: stop it with `frazil pause a`"):
        WriterLock(run_folder("a")).acquire()


def test_a_stream_that_only_a_user_can_fix_is_held_and_the_others_continue(shared: Shared) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    FakeWriter.orders["b"] = OffsetGap("Kafka's retention deleted offsets 5 to 9")
    shared.until(lambda: shared.application.hosted["b"].last_logged[:1] == ("hold",))
    assert [e.code for e in read_exits(run_folder("b"))] == [OffsetGap.exit_code]
    assert shared.runs("a", "c")
    assert (shared.starts("a"), shared.starts("b"), shared.starts("c")) == (1, 1, 1)
    open_desired_store(shared.application._streams.declared["b"].spec).resume(by="ana", reason="it is reset")  # type: ignore[arg-type]
    shared.until(lambda: shared.runs("b"))


def test_a_stream_with_unreachable_brokers_or_a_crash_is_restarted_after_a_backoff(shared: Shared) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    FakeWriter.orders |= {"a": KafkaUnavailable("silent"), "b": ZeroDivisionError("a bug")}
    shared.until(lambda: shared.starts("a") == shared.starts("b") == 2 and shared.runs("a", "b"))
    assert [e.code for e in read_exits(run_folder("a"))] == [KafkaUnavailable.exit_code]
    assert [(e.code, str(e.cause)) for e in read_exits(run_folder("b"))] == [(1, "ZeroDivisionError: a bug")]
    assert shared.starts("c") == 1


def test_when_a_stream_ends_the_log_states_whether_it_is_restarted(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    FakeWriter.orders |= {
        "a": TopicMissing("Kafka has no topic a", remedy="Create it"),
        "b": OffsetGap("5 to 9 are lost"),
    }
    shared.until(lambda: shared.starts("a") == 2 and not shared.runs("b"))
    said = [record.getMessage() for record in caplog.records if " ended: " in record.getMessage()]
    assert sorted(said) == [
        "stream a ended: TopicMissing: Kafka has no topic a. Create it. The stream will be restarted after a delay.",
        "stream b ended: OffsetGap: 5 to 9 are lost.",
    ]


def test_streams_are_added_changed_paused_and_broken_without_touching_the_others(shared: Shared) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    shared.declare("d")
    shared.declare("a", extra="lateness: 1h")
    (shared.streams / "c.yaml").write_text("name: c\napplication: small\nsauce: nothing\n")
    desired = open_desired_store(shared.application._streams.declared["b"].spec)  # type: ignore[arg-type]
    desired.pause(by="ana", reason="for a test")
    shared.until(lambda: shared.runs("d") and shared.starts("a") == 2 and shared.runs("a") and not shared.runs("b"))
    assert shared.runs("c"), "a broken file must not end a writer that runs"
    assert (shared.starts("c"), shared.starts("d")) == (1, 1)


def test_a_stream_that_leaves_this_application_ends_here_before_it_starts_in_its_own_process(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    text = (shared.streams / "a.yaml").read_text().replace("application: small\n", "")
    (shared.streams / "a.yaml").write_text(text)
    own = Supervisor(SupervisedStream(Program("a", shared.streams, Path("never"))))
    step = own.preview()
    assert (step.decision.action, step.decision.cause) == ("keep", "in a shared application")
    later_s = time.time_ns() // 10**6 + 11_000
    monkeypatch.setattr(shared.application._streams, "clock", lambda: later_s)
    for one in shared.application.hosted.values():
        one.supervisor._clock = lambda: later_s + 11_000
    shared.until(lambda: "a" not in shared.application.hosted)
    assert own.preview().decision.action == "start"
    assert shared.runs("b", "c")


def test_a_stream_that_moves_here_waits_until_the_old_supervisor_ends_its_process(shared: Shared) -> None:
    with WriterLock(run_folder("a"), streams=("a",)):
        shared.until(lambda: shared.runs("b", "c") and shared.application.hosted["a"].last_logged)
        assert not shared.runs("a")
    shared.until(lambda: shared.runs("a"))
    old = Supervisor(SupervisedStream(Program("a", shared.streams, Path("never"))))
    step = old.preview()
    assert (step.decision.action, step.decision.cause) == ("keep", "in a shared application")


def test_the_end_of_an_application_blames_no_stream_and_all_streams_stay_desired(shared: Shared) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    shared.engine.died = True
    eventually(lambda: shared.whole.failed is not None)
    with pytest.raises(WorkerDied, match="the JVM died"):
        shared.application.run()
    assert [(e.code, e.stopped_for) for e in read_exits(run_folder("a"))] == [(0, ENDED_WITH_APPLICATION)]
    heartbeat = Heartbeat.read(run_folder("small"))
    assert heartbeat is not None
    assert (heartbeat.phase, heartbeat.error) == ("ended", "the JVM died")


def test_a_hanging_writer_that_survives_a_kill_ends_the_application(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    FakeWriter.hangs.add("b")
    launcher = shared.application.hosted["b"].launcher
    launcher.stop(force=True)
    shared.application._raise_if_failed()  # not at once
    monkeypatch.setattr(module, "KILL_TIMEOUT_S", -1.0)
    with pytest.raises(WorkerDied, match="the writer of stream 'b' hangs"):
        shared.application.run()
    assert [(e.code, e.stopped_for) for e in read_exits(run_folder("a"))] == [(0, ENDED_WITH_APPLICATION)]
    assert launcher.is_running, "nobody waits for it"
    FakeWriter.hangs.clear()
    launcher.stop(force=False)
    launcher.join(20)


def test_a_check_that_waits_for_a_catalog_keeps_no_writer_from_ending_and_starts_none(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    looking, answers = threading.Event(), threading.Event()

    def silent() -> None:
        looking.set()
        answers.wait(60)

    monkeypatch.setattr(shared.application.hosted["b"].supervisor, "step", silent)
    running = threading.Thread(target=shared.application.run)
    running.start()
    assert looking.wait(20)
    shared.application.stop()
    running.join(20)
    assert not running.is_alive()
    assert not any(one.launcher.is_running for one in shared.application.hosted.values())
    answers.set()
    with pytest.raises(WriterBusy, match="the application small is stopping"):
        shared.application.hosted["b"].launcher.launch(LaunchRequest((), {}, "f", 0, ("b",)))


def test_a_stream_declared_by_two_files_keeps_running_unchanged_but_does_not_start(shared: Shared) -> None:
    """`cp a.yaml b.yaml`, and an edit of the copy's table: its records must not go there."""
    shared.until(lambda: shared.runs("a", "b", "c"))
    (shared.streams / "z.yaml").write_text(
        STREAM.format(name="a", application="small", table="demo.a", extra="lateness: 1h")
    )
    (shared.streams / "y.yaml").write_text(STREAM.format(name="d", application="small", table="demo.d", extra=""))
    (shared.streams / "x.yaml").write_text(
        STREAM.format(name="d", application="small", table="demo.d", extra="lateness: 1h")
    )
    shared.until(lambda: len(shared.application.hosted) == 4 and shared.application.hosted["d"].last_logged)
    found = shared.application._streams.declared["a"]
    assert f"declared in {shared.streams / 'a.yaml'} and {shared.streams / 'z.yaml'}" in (found.problem or "")
    assert (shared.starts("a"), shared.runs("a"), shared.starts("d")) == (1, True, 0)
    (shared.streams / "z.yaml").unlink()
    (shared.streams / "x.yaml").unlink()
    shared.until(lambda: shared.runs("a", "d"))
    assert shared.starts("a") == 1


def test_a_stream_is_started_again_after_the_host_had_no_thread_for_its_writer(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, refused = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name == "a" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    shared.until(lambda: shared.runs("a", "b", "c"))
    assert refused


def test_a_stream_written_by_another_process_does_not_keep_others_from_catching_up(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeWriter, "run", lambda _: None)
    with WriterLock(run_folder("b"), streams=("b",)):
        assert shared.application.catch_up() == {"a": 0, "b": WriterBusy.exit_code, "c": 0}


def test_a_supervisor_restarts_the_application_as_needed_and_ends_it_with_its_last_stream(shared: Shared) -> None:
    program = Program("small", shared.streams, Path("never"))
    supervised = SupervisedApplication(program, clock=lambda: 1_800_000_000_000)
    before = supervised.read()
    shared.declare("d", extra="lateness: 1h")
    assert supervised.read() == before
    shared.declare("d", extra="resources: {cores: 3}")
    assert supervised.read() != before
    request = supervised.build_launch_request(generation=0, connections=lambda _: {})
    assert request.streams == ("a", "b", "c", "d")
    for name in ("a", "b", "c", "d"):
        shared.declare(name, application="other")
    assert Supervisor(SupervisedApplication(program)).preview().decision.cause == "removed"


def test_an_application_with_the_name_of_a_stream_is_not_started_until_one_is_renamed(shared: Shared) -> None:
    shared.declare("small", application="other")
    read = SupervisedApplication(Program("small", shared.streams, Path("never"))).read()
    assert read == UnreadableState("a stream and an application are both named 'small'; rename one of them")


def test_commands_take_the_name_of_an_application_for_all_of_its_streams(shared: Shared) -> None:
    shared.until(lambda: shared.runs("a", "b", "c"))
    folder = ["--streams", str(shared.streams)]
    said = CliRunner().invoke(frazil, ["status", "small", *folder]).output
    assert said.startswith("application small: never launched\n")
    assert said.count("running in a shared application") == 3
    assert CliRunner().invoke(frazil, ["pause", "small", *folder]).exit_code == 0
    shared.until(lambda: not any(shared.application.hosted[name].launcher.is_running for name in ("a", "b", "c")))
    assert CliRunner().invoke(frazil, ["resume", "small", *folder]).exit_code == 0
    shared.until(lambda: shared.runs("a", "b", "c"))


def test_streams_that_need_another_process_than_the_others_are_refused(shared: Shared) -> None:
    shared.declare("a", extra="resources: {spark: {spark.x: '1'}}")
    shared.declare("b", extra="resources: {spark: {spark.x: '2'}}")
    shared.declare("small", application="other")
    with pytest.raises(SpecError) as refused:
        load_streams(shared.streams)
    assert "b.yaml: resources.spark.spark.x: '2', but the stream in" in str(refused.value)
    assert "a.yaml: application: 'small' is the name of the stream in" in str(refused.value)


def test_an_unresponsive_catalog_delays_only_its_own_streams(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = [f"d{number}" for number in range(6)]
    for name in dead:
        shared.declare(name, table="{catalog: dead, name: demo.d}")
    answers = threading.Event()
    step = Supervisor.step

    def silent(self: Supervisor) -> Any:
        if self._program.name in dead:
            answers.wait(60)
        return step(self)

    monkeypatch.setattr(Supervisor, "step", silent)
    shared.until(lambda: shared.runs("a", "b", "c"))
    assert not any(shared.starts(name) for name in dead)
    FakeWriter.orders["b"] = OffsetGap("Kafka's retention deleted offsets 5 to 9")
    shared.until(lambda: shared.application.hosted["b"].last_logged[:1] == ("hold",))
    answers.set()


HANGING = """
import threading
from frazil.table.parallel import DaemonThreads
threads, hangs = DaemonThreads(2, "hangs"), threading.Event()
began = threading.Event()
threads.submit(lambda: (began.set(), hangs.wait()))
assert began.wait(20)
print(threads.submit(lambda: 7).result(20))
"""


def test_a_call_that_hangs_does_not_delay_the_end_of_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "7\n"


def test_calls_that_wait_when_the_threads_are_closed_are_cancelled() -> None:
    threads, answers = DaemonThreads(1, "one"), threading.Event()
    first, second = threads.submit(lambda: answers.wait(20)), threads.submit(lambda: True)
    eventually(first.running)
    threads.close()
    assert second.cancelled()
    answers.set()
    assert first.result(20)
    assert threads.submit(lambda: True).cancelled(), "nobody would ever answer it"
    third = DaemonThreads(1, "another").submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        third.result(20)
