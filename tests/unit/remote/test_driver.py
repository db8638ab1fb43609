"""What a driver in a cluster reports to its agent, and what ends it."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from frazil import __version__
from frazil.errors import EnvironmentUnusable, OffsetGap
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.remote import driver as drivers
from frazil.remote.driver import (
    FOREIGN_SIGNAL,
    DriverReporter,
    LogTail,
    check_version,
    find_own_submission,
    run_driver,
)
from frazil.remote.driver_environment import (
    CATALOG_VARIABLE,
    build_driver_environment,
    remove_catalog_config,
    set_up_home,
)
from frazil.remote.driver_folder import DriverExit, DriverFolder, Order, WantedDriver
from frazil.table.storage import LocalStore

ORDER = Order("a" * 32, WantedDriver("f1", "1.0"), {}, "yarn")


class Driver:
    def __init__(self, folder: Path) -> None:
        self.folder = DriverFolder(LocalStore(), f"{folder}/driver")
        self.folder.put_order(ORDER)
        self.stops = 0
        self.paused = False
        self.reporter = DriverReporter(
            self.folder, ORDER, stream="ticks", is_paused=lambda: self.paused, stop=self._stop, interval_s=3600
        )

    def _stop(self) -> None:
        self.stops += 1


@pytest.fixture
def driver(tmp_path: Path, frazil_home: Path) -> Iterator[Driver]:  # noqa: ARG001
    found = Driver(tmp_path)
    with found.reporter:
        yield found


def test_the_driver_reports_its_heartbeat_its_log_and_its_exit(tmp_path: Path, frazil_home: Path) -> None:  # noqa: ARG001
    driver = Driver(tmp_path)
    heartbeat = Heartbeat("ticks", 1, "f1", Phase.STAGING, 10, 9)
    with driver.reporter as reporter:
        heartbeat.write(run_folder("ticks"))
        logging.getLogger("frazil").warning("something happened")
        reporter.step()
        report = driver.folder.report(ORDER.id)
        assert report is not None
        assert (report.heartbeat, report.exit) == (heartbeat, None)
        end = driver.folder.log_end(ORDER.id)
        assert end is not None
        assert "WARNING frazil: something happened\n" in end.text
        assert end.bytes == report.log_bytes
        reporter.ended = DriverExit(11, "OffsetGap: lost")
    ended = driver.folder.report(ORDER.id)
    assert ended is not None
    assert ended.exit == DriverExit(11, "OffsetGap: lost")
    assert ended.number > report.number


@pytest.mark.parametrize("changes", [{"stop": "paused"}, {"id": "b" * 32}])
def test_the_driver_is_stopped_once_when_its_order_requests_it_or_names_another_driver(
    driver: Driver, changes: dict[str, str]
) -> None:
    driver.reporter.step()
    assert driver.stops == 0
    driver.folder.put_order(dataclasses.replace(ORDER, **changes))  # type: ignore[arg-type]
    driver.reporter.step()
    driver.reporter.step()
    assert driver.stops == 1


def test_the_driver_stops_when_a_user_pauses_the_stream_even_without_an_agent(driver: Driver) -> None:
    driver.paused = True
    driver.reporter.step()
    assert driver.stops == 1


class Catalog:
    def load_table(self, name: str) -> None:
        pass


@pytest.mark.usefixtures("frazil_home")
@pytest.mark.parametrize(
    ("ends", "code", "reason"),
    [
        ("by itself", 0, None),
        ("by an error", 11, "OffsetGap: records are lost. Reset it"),
        ("by SIGTERM", 143, FOREIGN_SIGNAL),
        ("by SIGTERM before it writes", 143, FOREIGN_SIGNAL),
        ("by SIGTERM with an unreadable order", 143, FOREIGN_SIGNAL),
        ("by its order", 0, None),
        ("by its agent's kill", 143, "the driver received SIGTERM because frazil's agent killed it: it hung"),
        ("by SIGTERM right after its agent's stop", 0, None),
        ("by the agent of a newer driver", 0, None),
    ],
)
def test_a_driver_that_ends_reports_who_requested_its_end_or_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, code: int, reason: str | None
) -> None:
    declared = {
        "name": "ticks",
        "source": {"topics": ["ticks"], "format": "json", "bootstrap-servers": "localhost:1"},
        "table": "test.ticks",
        "schema": {"at": "timestamptz not null"},
        "event-time": "at",
    }
    order = dataclasses.replace(ORDER, wanted=WantedDriver("f1", __version__), declared=declared)
    folder = DriverFolder(LocalStore(), f"{tmp_path}/driver")
    folder.put_order(order)
    stopped = threading.Event()

    def write(*_: object, **__: object) -> bool:
        if ends == "by SIGTERM before it writes":
            signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        if ends == "by an error":
            raise OffsetGap("records are lost", remedy="Reset it", stream="ticks")
        if ends == "by its order":
            folder.put_order(dataclasses.replace(order, stop="ada paused the stream"))
            assert stopped.wait(20)
            return True
        if ends == "by its agent's kill":
            folder.put_order(dataclasses.replace(order, kill=True, stop="it hung"))
        elif ends.endswith("agent's stop"):
            folder.put_order(dataclasses.replace(order, stop="ada paused the stream"))
        elif ends == "by the agent of a newer driver":
            folder.put_order(dataclasses.replace(order, id="b" * 32))
        if ends.startswith("by SIGTERM") or "agent" in ends:
            signal.raise_signal(signal.SIGTERM)
        if ends.endswith("unreadable order"):
            (tmp_path / "driver" / "order.json").write_text("no JSON")
        return stopped.is_set()

    polls = 0.01 if ends == "by its order" else 3600  # the other ends come before the next poll
    monkeypatch.setattr(drivers, "DriverReporter", partial(DriverReporter, interval_s=polls))
    monkeypatch.setattr(drivers, "end_with_parent", lambda _: None)
    monkeypatch.setattr(drivers, "load_catalog", lambda _: Catalog())
    monkeypatch.setattr(DriverFolder, "open", lambda *_: folder)
    monkeypatch.setattr(drivers, "write", write)
    before = signal.getsignal(signal.SIGTERM)
    try:
        ended = run_driver("ticks", catalog="c", table="t", driver=ORDER.id)
    finally:
        signal.signal(signal.SIGTERM, before)
    report = folder.report(ORDER.id)
    assert report is not None
    assert report.exit is not None
    assert (ended, report.exit.code, report.exit.error) == (code, code, reason)


def test_a_log_tail_starts_at_a_line_and_counts_all_bytes() -> None:
    tail = LogTail(limit_bytes=40)
    for number in range(100):
        tail.emit(logging.makeLogRecord({"name": "x", "msg": f"line {number}", "levelname": "INFO", "created": 0}))
    end = tail.end()
    assert end.text.endswith("line 99\n")
    assert len(end.text) <= 40
    assert end.bytes > 1000


def test_a_driver_of_another_version_reports_both_versions() -> None:
    check_version(__version__)
    with pytest.raises(EnvironmentUnusable, match=rf"has frazil {__version__} in /.*, but its agent has 9\.9"):
        check_version("9.9")


def test_a_standalone_driver_finds_its_submission_id_in_its_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, found in {"driver-20261123014744-0000": "driver-20261123014744-0000", "work": None}.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert find_own_submission() == found


def test_the_driver_environment_has_its_streams_variables_and_no_folder_of_the_agents_host() -> None:
    base = {
        "KAFKA_PASSWORD": "hush",
        "AWS_REGION": "x",
        "HOME": "/root",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/t",
        "FRAZIL_HOME": "/f",
        "AIRFLOW__CORE": "secret",
    }
    found = build_driver_environment(
        base, referenced={"KAFKA_PASSWORD"}, catalog="lake", properties={"uri": "http://c"}
    )
    assert sorted(found) == sorted(["KAFKA_PASSWORD", "AWS_REGION", CATALOG_VARIABLE])


def test_the_driver_configures_pyiceberg_with_the_catalog_that_the_agent_sent(
    tmp_path: Path, long_text: Callable[[], str]
) -> None:
    sent = build_driver_environment(
        {}, referenced=(), catalog="lake", properties={"uri": "http://c", "token": long_text()}
    )
    environment = {**sent, "PYICEBERG_DEFAULT_CATALOG": "other"}
    set_up_home(environment, tmp_path)
    home = environment["FRAZIL_HOME"]
    assert environment == {"FRAZIL_HOME": home, "PYICEBERG_HOME": home}
    file = Path(home) / ".pyiceberg.yaml"
    assert yaml.safe_load(file.read_text()) == {
        "default-catalog": "lake",
        "catalog": {"lake": {"uri": "http://c", "token": long_text()}},
    }
    assert file.stat().st_mode & 0o077 == 0
    assert "{" not in file.read_text()
    remove_catalog_config(environment)
    assert not file.exists()


@pytest.fixture
def long_text() -> Callable[[], str]:
    return lambda: "a b " * 200 + "true"


def test_a_read_only_folder_is_left_alone(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    environment: dict[str, str] = {}
    set_up_home(environment, missing)
    assert Path(environment["FRAZIL_HOME"]).is_dir()
    os.rmdir(environment["FRAZIL_HOME"])  # noqa: PTH106
