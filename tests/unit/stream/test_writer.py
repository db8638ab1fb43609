"""An epoch of the writer: what restarts its loop, and what it leaves to the supervisor."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from frazil.commit.committer import Committer
from frazil.commit.stream_tables import StreamTables
from frazil.errors import KafkaUnavailable, PythonStartTimeout, SpecError, TopicMissing
from frazil.events import EventDispatcher, NoticeIssued
from frazil.host.heartbeat import Heartbeat
from frazil.ingest.contract import StageResult
from frazil.ingest.schema_drift import SchemaDrift
from frazil.kafka.admin import KafkaAdmin, Topics
from frazil.offsets.spans import SourceIdentity
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec
from frazil.stream import writer as writer_module
from frazil.stream.batch import BatchRunner
from frazil.stream.engine import TaskAnswer
from frazil.stream.notices import Notices
from frazil.stream.plan import Position
from frazil.stream.planner import DESCRIBE_INTERVAL_S
from frazil.stream.progress import ProgressFolder
from frazil.stream.reporter import Reporter
from frazil.stream.stall import StallLimits
from frazil.stream.writer import MAX_START_ATTEMPTS, Epoch, Writer
from frazil.supervise.decision_rules import RESTARTABLE_EXIT_CODES
from frazil.table.catalogs import load_catalog
from frazil.table.sql_catalog import PreparedSqlCatalog
from frazil.table.tables import ensure_dead_letters, ensure_table
from tests.made_batches import MadeStream


class Stopping(threading.Event):
    """Waits are written down, not waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0)
        return self.is_set()


class Anything:
    """Whatever an epoch only hands on."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def epoch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`epoch([2, None])`: the first loop commits two batches and then has no Python, the second ends."""

    def run(outcomes: list[int | None], goal: Any = None) -> tuple[Epoch, int]:
        begun, left = [], list(outcomes)

        class Loop:
            def __init__(self, _: object, __: object, drain: bool, *___: object) -> None:
                assert drain == (goal is not None), "who catches up does not wait for the commit interval"
                self.commits = 0

            def run(self, **_: object) -> None:
                outcome = left.pop(0)
                if outcome is not None:
                    self.commits = outcome
                    raise PythonStartTimeout("too busy")

            def is_left_unread(self, _: object) -> bool:
                return False

        def begin(_: Epoch) -> Any:
            begun.append(1)
            return Anything()

        monkeypatch.setattr(writer_module, "BatchLoop", Loop)
        monkeypatch.setattr(Epoch, "_take_over", begin)
        writer: Any = SimpleNamespace(stopping=Stopping(), hosting=Anything(), engine=None, spec=None)
        unused: Any = [Anything()] * 8
        one = Epoch(writer, *unused, goal=goal)
        try:
            one.run()
        finally:
            assert begun == [1]
        return one, len(left)

    return run


def test_a_batch_loop_whose_python_starts_too_late_restarts_in_the_same_epoch(epoch: Any):
    one, left = epoch([0, 0, 0, None])
    assert (left, one.writer.stopping.waits) == (0, [2, 4, 8])


def test_catching_up_drains_the_backlog(epoch: Any):
    one, left = epoch([0, None], goal={})
    assert (left, one.writer.stopping.waits) == (0, [2])


def test_a_committed_batch_resets_the_count_of_start_attempts(epoch: Any):
    one, left = epoch([0] * (MAX_START_ATTEMPTS - 1) + [3] + [0] * (MAX_START_ATTEMPTS - 2) + [None])
    assert (left, one.commits) == (0, 3)


def test_a_writer_on_a_host_that_stays_too_busy_exits_with_a_restartable_code(epoch: Any):
    with pytest.raises(PythonStartTimeout) as raised:
        epoch([0] * MAX_START_ATTEMPTS)
    assert raised.value.exit_code in RESTARTABLE_EXIT_CODES


def declared(frazil_home: Path, more: str = "") -> StreamSpec:
    file = frazil_home.parent / "s.yaml"
    file.write_text(
        "name: s\nsource: {topics: [t], format: json, bootstrap-servers: 'localhost:1'}\ntable: test.s\n"
        f"schema: {{at: timestamptz not null, note: string}}\nevent-time: at\n{more}"
    )
    return load_stream(file)


@pytest.mark.parametrize("requested", [True, False])
def test_silent_brokers_are_no_failure_of_a_writer_that_was_asked_to_end(
    requested: bool, frazil_home: Path, monkeypatch: pytest.MonkeyPatch
):
    def silent(_: KafkaAdmin) -> Topics:
        if requested:
            writer.stop()
        raise KafkaUnavailable("no answer within 10 s")

    monkeypatch.setattr(KafkaAdmin, "describe", silent)
    writer = Writer(declared(frazil_home), engine=StartedEngine())
    if requested:
        assert writer.run() is None
    else:
        with pytest.raises(KafkaUnavailable):
            writer.run()


class StartedEngine(Anything):
    """An engine that was started before its writer runs."""

    def __init__(self) -> None:
        self.ended_by: type[BaseException] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.ended_by = kind


def test_a_started_engine_is_ended_when_the_topic_is_missing(frazil_home: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(_: KafkaAdmin) -> Topics:
        raise TopicMissing("no topic t")

    monkeypatch.setattr(KafkaAdmin, "describe", missing)
    engine = StartedEngine()
    with pytest.raises(TopicMissing):
        Writer(declared(frazil_home), engine=engine).run()
    assert engine.ended_by is TopicMissing


def test_a_start_without_its_secret_does_not_take_over_a_stream_from_a_running_writer(
    frazil_home: Path, monkeypatch: pytest.MonkeyPatch
):
    """The one that runs has the secret; the other may be on another host, where no lock is shared."""
    spec = declared(frazil_home, "sensitive: {fields: {note: hash}, secret: '${env:TEST_SECRET}'}\n")
    monkeypatch.setattr(KafkaAdmin, "describe", lambda _: Topics(SourceIdentity("cluster", {"t": "id"}), (("t", 0),)))
    monkeypatch.setattr(KafkaAdmin, "starts", lambda *_: {("t", 0): 0})
    catalog = load_catalog(None)
    tables = StreamTables.open(
        spec.name,
        {"main": ensure_table(catalog, spec), "dead-letters": ensure_dead_letters(catalog, spec)},
        clock_ms=lambda: 1,
    )
    running = Committer.take_over(tables, source=SourceIdentity("cluster", {"t": "id"}), initial=lambda: {("t", 0): 0})
    monkeypatch.delenv("TEST_SECRET", raising=False)
    with pytest.raises(SpecError, match="TEST_SECRET"):
        Writer(spec, engine=StartedEngine()).run()
    marker = tables.marker()
    assert marker is not None
    assert marker.key == (running.epoch, 0)
    monkeypatch.setenv("TEST_SECRET", "a secret of the tests")
    monkeypatch.setattr(Epoch, "_handle_offset_gaps", _ends)
    with pytest.raises(KeyboardInterrupt):
        Writer(spec, engine=StartedEngine()).run()
    marker = tables.marker()
    assert marker is not None
    assert marker.key.epoch == running.epoch + 1, "with its secret the same start takes over"


def _ends(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_writer_checks_for_the_first_topic_of_its_pattern_at_intervals(frazil_home: Path):
    spec = declared(frazil_home).model_dump(mode="json", by_alias=True, exclude_unset=True)
    source = {"topic-pattern": "t.*", "format": "json", "bootstrap-servers": "localhost:1"}
    writer = Writer(StreamSpec.model_validate({**spec, "source": source}), engine=StartedEngine(), stopping=Stopping())
    found: list[Any] = [(), (), (("t", 0),)]
    kafka: Any = SimpleNamespace(describe=lambda: SimpleNamespace(partitions=found.pop(0)))
    said: list[Any] = []
    assert writer._wait_for_topics(kafka, said.append)
    assert writer.stopping.waits == [DESCRIBE_INTERVAL_S] * 2  # type: ignore[attr-defined]
    assert any("no topic of the cluster matches" in str(one) for one in said)


def test_a_writer_asked_to_stop_during_a_catalog_outage_ends_promptly_without_an_error(
    frazil_home: Path, monkeypatch: pytest.MonkeyPatch
):
    """The catalog fails for good once the table is there: without the stop it would be waited for."""

    def away(*_: object, **__: object) -> None:
        writer.stop()
        raise ConnectionError("refused")

    writer = Writer(declared(frazil_home), engine=StartedEngine(), stopping=Stopping())
    monkeypatch.setattr(KafkaAdmin, "describe", lambda _: Topics(SourceIdentity("cluster", {"t": "id"}), (("t", 0),)))
    monkeypatch.setattr(KafkaAdmin, "starts", lambda *_: {("t", 0): 0})
    monkeypatch.setattr(PreparedSqlCatalog, "commit_table", away)
    assert writer.run() is None
    assert len(writer.stopping.waits) <= 1  # type: ignore[attr-defined]


def test_notices_of_an_epoch_are_withdrawn_and_the_next_epoch_continues_their_counts(frazil_home: Path, tmp_path: Path):
    spec = declared(frazil_home)
    made = MadeStream(spec, 2_000_000_000_000, partitions=1)
    topics = Topics(made.source, (("t", 0),))
    kafka = SimpleNamespace(
        describe=lambda: topics, starts=lambda *_: {("t", 0): 0}, earliest=lambda _: {}, log_ends=lambda _: {}
    )
    events = EventDispatcher("s", clock_ms=lambda: made.now_ms)
    reporter = Reporter(events, fingerprint="f", folder=tmp_path, limits=StallLimits.for_stream(spec))
    issued: list[NoticeIssued] = []
    events.add(lambda event: issued.append(event.payload) if isinstance(event.payload, NoticeIssued) else None)
    epoch = Epoch(
        Writer(spec, Anything()),  # type: ignore[arg-type]
        kafka,  # type: ignore[arg-type]
        made.tables,
        ProgressFolder(str(tmp_path / "progress"), {}),
        tmp_path,
        events.emit,
        lambda _: None,
        ExitStack(),
        Notices(events.emit, spec.table.identifier),
    )

    def commit(runner: BatchRunner, *notices: str, drift: SchemaDrift) -> tuple[str, ...]:
        answer = TaskAnswer(StageResult((), (), drift={"main": drift}, notices=notices), 0.0)
        runner.run(lambda _: (answer,), Position(runner.marker.offsets), tasks=1)
        reporter.send_heartbeat()
        heartbeat = Heartbeat.read(tmp_path)
        assert heartbeat is not None
        return heartbeat.notices

    assert len(commit(epoch._take_over(), "compiles", "reads slowly", drift=SchemaDrift(unknown=2))) == 3
    slow, unmatched = commit(epoch._take_over(), "reads slowly", drift=SchemaDrift(unknown=1))
    assert slow == "reads slowly"
    assert unmatched.startswith("3 records have no field")
    assert sum(not one.replaces for one in issued) - sum(not one.sentence for one in issued) == 2
