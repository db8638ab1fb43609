"""A launcher that starts a real process as the writer. The process ends with the test."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat
from frazil.host.launcher import LaunchRequest
from frazil.host.local import LocalLauncher
from tests import polling

FAKE_WRITER = Path(__file__).with_name("fake_writer.py")
STREAM = """
name: ticks
source: {topics: [ticks], bootstrap-servers: "127.0.0.1:1"}
table: demo.ticks
schema: {ts: timestamptz not null}
event-time: ts
"""


class WriterAtHand:
    """A launcher of the fake writer, and the contents of its run folder."""

    def __init__(self, home: Path, streams: Path) -> None:
        self.home, self.streams = home, streams
        self.launcher = LocalLauncher("ticks")
        self.folder = run_folder("ticks")
        self.folder.mkdir(parents=True, exist_ok=True)

    def request(self, *command: str, **changes: Any) -> LaunchRequest:
        default = (sys.executable, str(FAKE_WRITER), "ticks", "--streams", str(self.streams))
        environment = {**os.environ, "FRAZIL_HOME": str(self.home)}
        return LaunchRequest(
            command or default,
            environment,
            changes.get("spec_fingerprint", "f1"),
            changes.get("generation", 0),
        )

    def orders(self, **orders: Any) -> None:
        (self.home / "orders-ticks.json").write_text(json.dumps(orders))

    def batch(self) -> int:
        heartbeat = Heartbeat.read(self.folder)
        return (heartbeat and heartbeat.batch) or 0


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    folder = tmp_path / "streams"
    folder.mkdir()
    (folder / "ticks.yaml").write_text(STREAM)
    return folder


@pytest.fixture
def at_hand(tmp_path: Path, streams: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriterAtHand]:
    home = tmp_path / "home"
    monkeypatch.setenv("FRAZIL_HOME", str(home))
    writer = WriterAtHand(home, streams)
    yield writer
    writer.launcher.stop(force=True)
    polling.eventually(lambda: not writer.launcher.observe().process.is_alive)
