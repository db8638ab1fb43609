"""`frazil doctor`: each check reports its result and its fix, whatever the other checks do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from frazil import extras, outdated_code
from frazil.cli.main import frazil
from frazil.doctor import Check, CheckState, Finding, connections, host, run_checks
from frazil.doctor import host as airflow
from frazil.doctor.streams import (
    MIN_CLOCK_ERROR_MS,
    MIN_CLOCK_WARNING_MS,
    ServerTime,
    compare_clocks,
    evaluate_clock,
    load_declarations,
)
from frazil.errors import EnvironmentUnusable
from frazil.host.processes import register_page_server

NOW = 1_700_000_000_000


def states(found: list[Finding]) -> list[CheckState]:
    return [one.state for one in found]


def test_findings_come_in_the_order_of_their_checks_whatever_each_does() -> None:
    never = threading.Event()

    def hangs() -> Iterator[Finding]:
        never.wait()
        yield Finding("hangs", CheckState.OK, "")

    def unusable() -> Iterator[Finding]:
        raise EnvironmentUnusable("no Java. Install one")
        yield

    def fails() -> Iterator[Finding]:
        yield Finding("fails", CheckState.OK, "half of it")
        raise OSError("the disk\nis gone")

    checks = {
        "fine": Check(lambda: [Finding("fine", CheckState.OK, "all well")]),
        "hangs": Check(hangs, timeout_s=0.05),
        "unusable": Check(unusable),
        "fails": Check(fails),
        "nothing": Check(list),
    }
    found = list(run_checks(checks))
    never.set()
    assert [one.subject for one in found] == ["fine", "hangs", "unusable", "fails"]
    assert states(found) == [CheckState.OK, CheckState.WRONG, CheckState.WRONG, CheckState.WRONG]
    assert found[2].message == "EnvironmentUnusable: no Java. Install one"
    assert found[3].message == "OSError: the disk is gone"


@pytest.mark.parametrize(
    ("apart_ms", "state"),
    [
        (0, CheckState.OK),
        (MIN_CLOCK_WARNING_MS - 1, CheckState.OK),
        (MIN_CLOCK_WARNING_MS, CheckState.WARNING),
        (-MIN_CLOCK_WARNING_MS, CheckState.WARNING),
        (MIN_CLOCK_ERROR_MS, CheckState.WRONG),
        (-MIN_CLOCK_ERROR_MS, CheckState.WRONG),
    ],
)
def test_a_clock_check_depends_on_the_clock_difference(apart_ms: int, state: CheckState) -> None:
    found = evaluate_clock("server", ServerTime(NOW, NOW + apart_ms, NOW))
    assert found.state is state
    assert bool(found.fix) == (state is not CheckState.OK)
    if apart_ms <= -MIN_CLOCK_WARNING_MS:
        assert "behind this machine's" in found.message


@given(st.integers(-200_000, 200_000), st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 999))
def test_network_delay_never_exaggerates_a_clock_difference(skew: int, there: int, back: int, cut: int) -> None:
    """A server reads its clock after the request took its way, and a header leaves out part of a second."""
    theirs = NOW + there + skew - cut
    reported = ServerTime(NOW, theirs, NOW + there + back, precision_ms=1_000)
    assert abs(reported.difference_ms) <= abs(skew)
    assert abs(reported.difference_ms) >= abs(skew) - there - back - 1_000


class _Late(BaseHTTPRequestHandler):
    """An HTTP server whose clock is years behind, and that refuses everybody."""

    def do_HEAD(self) -> None:
        self.send_response(401)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:  # noqa: ARG002
        return "Sun, 01 Nov 2020 08:00:00 GMT"

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def late_server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Late)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_clock_of_a_server_is_compared_even_if_it_refuses_the_request(late_server: str) -> None:
    (found,) = compare_clocks([late_server], {})
    assert found.state is CheckState.WRONG
    assert "behind this machine's" in found.message


def test_the_clock_of_each_catalog_database_is_compared() -> None:
    def broken() -> int:
        raise OSError

    found, unknown = compare_clocks([], {"lake": lambda: NOW, "gone": broken})
    assert found.state is CheckState.WRONG
    assert "the database of catalog 'lake'" in found.message
    said = "the clock of the database of catalog 'gone' was not compared: OSError"
    assert (unknown.state, unknown.message) == (CheckState.SKIPPED, said)


def test_each_server_whose_clock_cannot_be_compared_is_named(late_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Late, "date_time_string", lambda *_: "today")
    untimed, silent = sorted(
        compare_clocks([late_server, "http://127.0.0.1:1"], {}), key=lambda one: "127.0.0.1:1 " in one.message
    )
    assert states([untimed, silent]) == [CheckState.WARNING, CheckState.SKIPPED]
    assert (
        untimed.message
        == f"the clock of {late_server.removeprefix('http://')} was not compared: the response has no time"
    )
    assert silent.message == "the clock of 127.0.0.1:1 was not compared: ConnectionError"


def test_the_clock_check_is_skipped_without_servers() -> None:
    assert states(list(compare_clocks([], {}))) == [CheckState.SKIPPED]


def test_another_java_version_is_an_error_that_explains_how_to_get_java_17(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (found,) = run_checks({"java": Check(host.check_java)})
    assert found.state is CheckState.WRONG
    assert "is Java 21; frazil needs Java 17. Install a JDK 17" in found.message


@pytest.mark.parametrize(
    ("check", "found", "sentence"),
    [
        (host.check_pyspark, "3.5.8", "Spark 3.5.8 is installed, but frazil supports Spark 4.0 and 4.1."),
        (
            partial(host.check_airflow, Path(), {}),
            "3.2.2",
            "Airflow 3.2.2 is installed, but frazil supports Airflow 3.3.",
        ),
    ],
)
def test_an_unsupported_dependency_version_is_an_error(
    monkeypatch: pytest.MonkeyPatch, check: Callable[[], Iterator[Finding]], found: str, sentence: str
) -> None:
    monkeypatch.setattr(extras, "version", lambda _: found)
    (finding,) = run_checks({"it": Check(check)})
    assert finding.state is CheckState.WRONG
    assert finding.message.startswith(f"UnsupportedVersion: {sentence}")


def test_jars_that_are_missing_are_fetched_later_and_only_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_JARS", str(tmp_path))
    (found,) = host.check_jars()
    assert (found.state, found.fix) == (CheckState.WARNING, "python -m frazil.spark.jars fetch spark")


def disk_with_room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Make every disk report this much free space, whatever the real disk has."""
    monkeypatch.setattr(host.shutil, "disk_usage", lambda _place: SimpleNamespace(free=free))


@pytest.mark.parametrize(
    ("free", "state"), [(host.MIN_FREE_BYTES - 1, CheckState.WARNING), (host.MIN_FREE_BYTES, CheckState.OK)]
)
def test_a_nearly_full_disk_causes_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: CheckState
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    disk_with_room(monkeypatch, free)
    assert states(list(host.check_folders())) == [state, state]


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_with_room(monkeypatch, host.MIN_FREE_BYTES)
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    assert states(list(host.check_folders())) == [CheckState.WRONG, CheckState.OK]


def test_a_missing_folder_is_not_created_by_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_with_room(monkeypatch, host.MIN_FREE_BYTES)
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "a" / "b"))
    assert states(list(host.check_folders())) == [CheckState.OK, CheckState.OK]
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("says", "state"),
    [
        (f"{sys.version_info[0]} {sys.version_info[1]} 0.1.0", CheckState.OK),
        ("3 9 0.1.0", CheckState.WRONG),
        ("", CheckState.WRONG),
    ],
)
def test_the_tasks_python_must_be_the_same(
    says: str, state: CheckState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{says}'\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    monkeypatch.setattr(host, "__version__", "0.1.0")
    assert states(list(host.check_task_python())) == [state]


def test_a_missing_pyspark_python_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    (found,) = host.check_task_python()
    assert found.state is CheckState.WRONG
    assert "unset PYSPARK_PYTHON" in found.fix


@pytest.mark.usefixtures("frazil_home")
def test_an_api_server_with_outdated_code_is_reported_until_it_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> Finding:
        (one,) = host.check_api_servers()
        return one

    package = tmp_path / "frazil"
    package.mkdir()
    (package / "one.py").write_text("a = 1")
    monkeypatch.setattr(outdated_code, "FOLDER", package)
    assert found().state is CheckState.SKIPPED
    register_page_server()
    assert found().state is CheckState.OK
    (package / "one.py").write_text("a = 10")
    changed = found()
    assert (changed.state, changed.fix) == (CheckState.WARNING, "restart Airflow's API server")
    assert f"(process {os.getpid()})" in changed.message
    register_page_server()
    assert found().state is CheckState.OK


def test_doctor_ignores_ended_api_servers_and_other_hosts_but_keeps_records_of_the_latter(
    frazil_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = frazil_home / "page" / "servers"
    for name in ("elsewhere", "here"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        register_page_server()
    ended = json.loads((folder / f"here-{os.getpid()}.json").read_text())
    ended["process"]["started_at_s"] -= 3600
    (folder / f"here-{os.getpid()}.json").write_text(json.dumps(ended))
    (folder / "here-1.json").write_text("[]")
    assert [one.state for one in host.check_api_servers()] == [CheckState.SKIPPED]
    register_page_server()
    assert {file.name for file in folder.iterdir()} == {f"elsewhere-{os.getpid()}.json", f"here-{os.getpid()}.json"}
    assert [one.state for one in host.check_api_servers()] == [CheckState.OK]


def test_a_port_used_by_another_program_is_reported_and_our_own_port_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (other,) = host.check_ports({"kafka": port}, {})
        (own,) = host.check_ports({"kafka": port}, {"kafka": port})
    assert (other.state, own.state) == (CheckState.WARNING, CheckState.OK)
    assert f"{port} (kafka)" in other.message
    assert own.message == f"kafka runs on {port}; the other ports are free"
    assert [one.message for one in host.check_ports({}, {})] == ["the ports of `frazil dev up` are free"]


def test_invalid_declarations_are_reported_next_to_valid_ones(tmp_path: Path) -> None:
    assert states(load_declarations(tmp_path / "none")[1]) == [CheckState.SKIPPED]
    (tmp_path / "a.yaml").write_text(
        "name: a\nsource: {topics: [a], format: json, bootstrap-servers: '127.0.0.1:1'}\ntable: t.a\n"
        "schema: {at: timestamptz not null}\nevent-time: at\n"
    )
    (tmp_path / "b.yaml").write_text("name: b\n")
    streams, found = load_declarations(tmp_path)
    assert [spec.name for spec in streams.values()] == ["a"]
    assert set(states(found)) == {CheckState.WRONG}
    assert all("b.yaml" in one.message for one in found)


def test_an_airflow_that_was_not_set_up_is_skipped_and_unchanged(tmp_path: Path) -> None:
    found = list(airflow.check_airflow(tmp_path, {"AIRFLOW_HOME": str(tmp_path), "PATH": ""}))
    assert states(found) == [CheckState.SKIPPED]
    assert list(tmp_path.iterdir()) == []


def test_a_command_for_an_airflow_with_another_home_names_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/elsewhere")
    (tmp_path / "airflow.cfg").touch()
    commands = []

    def run(words: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        commands.append(words[-1])
        return subprocess.CompletedProcess(words, 1, stdout="", stderr="no database")

    monkeypatch.setattr(subprocess, "run", run)
    (found,) = airflow.check_airflow(tmp_path, {"AIRFLOW_HOME": str(tmp_path)})
    assert found.fix == f"AIRFLOW_HOME={tmp_path} airflow db check"
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    (found,) = airflow.check_airflow(tmp_path, {"AIRFLOW_HOME": str(tmp_path)})
    assert found.fix == "airflow db check"
    assert commands == [f"AIRFLOW_HOME={tmp_path} airflow", "airflow"], "for the commands in Airflow's findings"


def test_the_command_exits_with_1_if_it_finds_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(connections, "_check_kafka", lambda spec: f"topic {spec.source.topics[0]}: 3 partitions")
    (tmp_path / "a.yaml").write_text(
        "name: a\nsource: {topics: [a], format: json, bootstrap-servers: '127.0.0.1:1'}\ntable: t.a\n"
        "schema: {at: timestamptz not null}\nevent-time: at\n"
    )
    valid = CliRunner().invoke(frazil, ["doctor", "--streams", str(tmp_path), "--json"])
    assert valid.exit_code == 0, valid.output
    document = json.loads(valid.stdout)
    assert document["counts"]["wrong"] == 0
    assert "a: topic a: 3 partitions" in [one["message"] for one in document["findings"]]
    (tmp_path / "b.yaml").write_text("name: b\n")
    broken = CliRunner().invoke(frazil, ["doctor", "--streams", str(tmp_path)])
    assert broken.exit_code == 1
    assert "✗ declarations" in broken.stdout
    assert broken.stdout.rstrip().endswith(" not checked"), "what was not checked is counted"
