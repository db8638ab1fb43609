"""An open backfill that no process works on is shown as interrupted; `frazil status` always shows it."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from frazil.backfill.commit import BackfillCommitter
from frazil.backfill.request import parse_request
from frazil.backfill.rules import COMMIT_TIMEOUT_MS, describe_interruption
from frazil.cli.main import frazil
from frazil.commit.backfill_records import BackfillMarker, Worker, read_backfill
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import land, made_stream

INTERRUPTED = "its run failed or was interrupted; to finish it: frazil backfill made"


@pytest.fixture
def made(tmp_path: Path, frazil_home: Path) -> MadeStream:  # noqa: ARG001
    stream = made_stream(tmp_path)
    stream.now_ms = time.time_ns() // 1_000_000
    land(stream, 1)
    return stream


def begin(made: MadeStream, worker: Worker, monkeypatch: pytest.MonkeyPatch, **request: str) -> BackfillMarker:
    monkeypatch.setattr(Worker, "current_process", lambda: worker)
    return BackfillCommitter.begin(made.tables, parse_request({"stream": "made", **request})).backfill


def call(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(frazil, [*arguments, "--streams", str(folder)], catch_exceptions=False)
    return " ".join(done.stdout.replace("`", "").split())


def test_a_backfill_whose_process_was_killed_is_shown_as_interrupted(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = begin(made, Worker(socket.gethostname(), 2**22 + 1, 0.0), monkeypatch)
    assert INTERRUPTED in call(tmp_path, "backfill", "made", "--status")
    shown = f"backfill {last.id}: staging, 0 of 0 chunks; {INTERRUPTED}"
    assert shown in call(tmp_path, "status", "made")
    (stream,) = json.loads(CliRunner().invoke(frazil, ["status", "--json", "--streams", str(tmp_path)]).stdout)[
        "streams"
    ]
    assert stream["backfill"].replace("`", "").startswith(shown)


def test_a_backfill_with_a_live_process_is_shown_as_open(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = begin(made, Worker.current_process(), monkeypatch)
    assert last.worker == Worker.current_process()
    assert last.worker.pid == os.getpid()
    assert "interrupted" not in call(tmp_path, "backfill", "made", "--status")
    assert f"backfill {last.id}: staging, 0 of 0 chunks" in call(tmp_path, "status", "made")


def test_a_process_on_another_host_counts_as_alive_by_its_last_commit(
    made: MadeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = begin(made, Worker("elsewhere", os.getpid(), 0.0), monkeypatch)
    metadata = made.tables.main.refresh().metadata
    assert read_backfill(metadata.properties, "made") == last
    assert describe_interruption(last, metadata, now_ms=made.now_ms + COMMIT_TIMEOUT_MS // 2) is None
    said = describe_interruption(last, metadata, now_ms=made.now_ms + 2 * COMMIT_TIMEOUT_MS)
    assert f"by process {os.getpid()} of host elsewhere" in (said or "")


def test_a_backfill_on_its_branch_is_published_by_the_command_that_its_status_shows(
    made: MadeStream, tmp_path: Path
) -> None:
    offsets = {"made": {"0": 1200, "1": 7}}
    request = parse_request({"stream": "made", "from-offsets": offsets, "chunk-records": 5, "target": "branch"})
    committer = BackfillCommitter.begin(made.tables, request)
    command = 'frazil backfill made --from \'{"made": {"0": 1200, "1": 7}}\' --chunk-records 5'
    assert committer.backfill.command == f"{command} --branch", "an interrupted run must continue on the branch"
    committer.mark_staged()
    done = CliRunner().invoke(frazil, ["backfill", "made", "--status", "--streams", str(tmp_path)])
    shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith(" "))
    assert (shown["from"], shown["chunk-records"]) == ("offsets made[0] 1,200, made[1] 7", "5")
    assert "its rows are not published. To publish them:" in shown["state"]
    assert f"    {command}" in done.stdout.splitlines()
    assert "    frazil backfill made --abandon" in done.stdout.splitlines()
    assert f"To publish them: {command}" in call(tmp_path, "status", "made")
    publishing = parse_request({"stream": "made", "from-offsets": offsets})
    published = BackfillCommitter.begin(made.tables, publishing).backfill
    assert (published.id, published.command) == (committer.backfill.id, command.partition(" --chunk")[0])
