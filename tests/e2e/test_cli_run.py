"""`frazil run` and `frazil status` in a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from frazil.home import run_folder

FRAZIL = str(Path(sys.executable).with_name("frazil"))
Status = Callable[[], dict[str, Any]]


@pytest.fixture
def status(stream: Any, frazil: Any) -> Status:
    """Return the output of `frazil status --json` for the stream."""

    def ask() -> dict[str, Any]:
        done = frazil("status", stream.name, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout)["streams"][0])

    return ask


@pytest.fixture
def running(stream: Any, events: Any, eventually: Any, status: Status) -> Iterator[subprocess.Popen[bytes]]:
    """A writer in the foreground that has committed once, in a process group of its own, as a shell makes one."""
    stream.declare("commit: {interval: 1s}\n")
    stream.produce([*events(range(1000)), b"not json"], partitions=4)
    command = [FRAZIL, "run", stream.name, "--streams", str(stream.streams)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        eventually(lambda: process.poll() is not None or status()["last-commit-at-ms"], within_s=180)
        assert process.poll() is None, process.stderr and process.stderr.read().decode()[-3000:]
        yield process
    finally:
        writer = status()["writer"]["pid"]
        for pid in filter(None, (writer, process.pid)):
            if psutil.pid_exists(pid):
                os.killpg(pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.rotates(2)
def test_a_foreground_writer_excludes_others_until_ctrl_c_lets_its_batch_commit(
    stream: Any, events: Any, running: subprocess.Popen[bytes], status: Status
):
    seen = status()
    check_others_are_refused(stream, seen)
    assert running.poll() is None

    writer = psutil.Process(seen["writer"]["pid"])
    family = [writer, *writer.children(recursive=True)]
    stream.produce(events(range(1000, 2000)), partitions=4)
    # A terminal sends it to the whole foreground group.
    os.killpg(running.pid, signal.SIGINT)
    shown, complaints = running.communicate(timeout=60)

    assert running.returncode == 0, complaints.decode()[-3000:]
    # On a busy host there may be a stall to tell about; of the engines there is nothing.
    assert all(line.startswith("warning: ") for line in complaints.decode().splitlines()), complaints
    lines = shown.decode().splitlines()
    check_what_is_shown(stream, lines)
    assert [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    ids = stream.ids()
    assert len(ids) == len(set(ids))
    assert set(range(1000)) <= set(ids) <= set(range(2000))
    after = status()["writer"]
    assert (after["state"], after["exit-code"], after["error"]) == ("ended", 0, None)
    waits = 2000 - len(ids)
    assert ("wait in Kafka" in lines[-1]) == (waits > 0)
    check_lag_without_a_writer(stream, status, waits=waits)


def check_what_is_shown(stream: Any, lines: list[str]) -> None:
    """Check the output: no engine's log, but its path, one line per batch, the user's request and its result."""
    log = run_folder(stream.name) / "writer.log"
    first, *batches, last = [line for line in lines if not line.startswith("The current batch commits")]
    assert len(batches) == len(lines) - 3
    assert first == f"{stream.name}: {stream.topic} to test.{stream.name}; log: {log}"
    assert batches[0].startswith("batch 1-1: 1,000 rows, 1 dead letter in 2 files, ")
    assert all(line.startswith("batch 1-") for line in batches)
    assert last.startswith("stopped: ")
    where = f"see the column `error` of table test.{stream.name}_dead_letters"
    assert f"rows added to test.{stream.name}, 1 dead letter ({where})" in last
    assert "INFO frazil.stream.batch: batch 1-1: " in log.read_text()


def check_lag_without_a_writer(stream: Any, status: Status, *, waits: int) -> None:
    assert (status()["lag"], status()["problems"]) == (waits, [])
    stream.bootstrap = "127.0.0.1:1"
    stream.declare()
    seen = status()
    assert seen["lag"] is None
    assert "the lag is unknown: KafkaUnavailable: " in seen["problems"][0]


def check_others_are_refused(stream: Any, seen: dict[str, Any]) -> None:
    assert seen["writer"]["state"] == "running in the foreground"
    assert seen["writer"]["stale"] is False
    assert (seen["epoch"], seen["lag"], seen["rows"], seen["problems"]) == (1, 0, 1000, [])
    for arguments in (["run", stream.name], ["forget", stream.name, "--yes"]):
        refused = subprocess.run(
            [FRAZIL, *arguments, "--streams", str(stream.streams)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert refused.returncode == 9, refused.stderr
        assert str(seen["writer"]["pid"]) in refused.stderr


@pytest.mark.rotates(2)
def test_rows_of_a_journal_that_a_killed_writer_left_are_counted_by_the_run_that_commits_them(
    stream: Any, events: Any, tmp_path: Path
):
    stream.produce([*events(range(200)), b"not json"])
    points = tmp_path / "points"
    points.write_text("after-journal")
    command = stream.command("--until-caught-up")
    command[1] = str(Path(__file__).parents[1] / "faults" / "crashing_writer.py")
    environment = {**os.environ, "FRAZIL_TEST_CRASHES": str(points), "FRAZIL_TEST_ENGINE": "python"}
    crashed = subprocess.run(command, env=environment, capture_output=True, timeout=250, check=False)
    assert crashed.returncode == -signal.SIGKILL

    again = [FRAZIL, "run", stream.name, "--streams", str(stream.streams), "--until-caught-up"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=250, check=False)

    assert "batch 1-1: 200 rows, 1 dead letter" in done.stdout
    assert f"caught up: 200 rows added to test.{stream.name}, 1 dead letter" in done.stdout
