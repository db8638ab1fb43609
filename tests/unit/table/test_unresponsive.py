"""Services that did not answer are remembered, and not called again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from traceback import walk_tb

import pytest

from frazil.errors import CommitUnavailable, FrazilError, KafkaUnavailable, StorageUnavailable
from frazil.table import unresponsive
from frazil.table.unresponsive import Unresponsive, run_with_timeout


class Service:
    """A service that fails with `error` after `took_s` of a clock that moves only then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.calls = 100.0, 0
        monkeypatch.setattr(unresponsive.time, "monotonic", lambda: self.now_s)

    def fails(self, error: FrazilError, *, after_s: float) -> Callable[[], None]:
        def step() -> None:
            self.calls += 1
            self.now_s += after_s
            raise error

        return step


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def _brokers(*, all_brokers: bool) -> KafkaUnavailable:
    error = KafkaUnavailable("silent")
    error.all_brokers = all_brokers
    return error


def _late(error: CommitUnavailable) -> CommitUnavailable:
    error.__cause__ = TimeoutError()
    return error


@pytest.mark.parametrize(
    ("error", "after_s", "calls"),
    [
        (CommitUnavailable("silent"), 10, 1),
        (StorageUnavailable("silent"), 10, 1),
        (CommitUnavailable("refused"), 9, 2),
        (_late(CommitUnavailable("silent")), 1, 1),
        (_brokers(all_brokers=True), 1, 1),
        (_brokers(all_brokers=False), 60, 2),
        (FrazilError("invalid"), 60, 2),
    ],
    ids=str,
)
def test_only_a_service_that_did_not_answer_is_not_asked_again(
    service: Service, error: FrazilError, after_s: float, calls: int
) -> None:
    services = Unresponsive()
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            services.call("lake", service.fails(error, after_s=after_s))
    assert service.calls == calls
    assert services.call("pond", lambda: "answered") == "answered"


def test_a_remembered_error_does_not_grow_with_each_call(service: Service) -> None:
    services, frames = Unresponsive(), list[int]()
    for _ in range(4):
        with pytest.raises(CommitUnavailable) as caught:
            services.call("lake", service.fails(CommitUnavailable("silent"), after_s=10))
        frames.append(len([*walk_tb(caught.tb)]))
    assert frames[1:] == [frames[1]] * 3


def test_a_service_is_asked_again_after_a_while(service: Service) -> None:
    services = Unresponsive(keep_s=3)
    for _ in range(2):
        with pytest.raises(KafkaUnavailable):
            services.call("kafka", service.fails(_brokers(all_brokers=True), after_s=1))
    service.now_s += 3
    assert services.call("kafka", lambda: "answered") == "answered"
    assert service.calls == 1


def test_one_slow_table_does_not_make_a_catalog_silent_that_answers_others(service: Service) -> None:
    services, error = Unresponsive(), CommitUnavailable("slow")

    def step() -> None:
        service.now_s += 1
        services.call("lake", lambda: None)
        service.fails(error, after_s=60)()

    with pytest.raises(CommitUnavailable):
        services.call("lake", step)
    assert services.call("lake", lambda: "answered") == "answered"


def test_a_step_that_hangs_is_abandoned_and_another_returns_its_result_or_error() -> None:
    go = threading.Event()
    with pytest.raises(TimeoutError):
        run_with_timeout(go.wait, 0.01)
    go.set()
    assert run_with_timeout(lambda: threading.current_thread().daemon, 60)
    with pytest.raises(ValueError, match="abc"):
        run_with_timeout(lambda: int("abc"), 60)
