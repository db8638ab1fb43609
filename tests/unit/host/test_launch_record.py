"""The record of a launch, which supervisors of other versions read and write."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from frazil.host.lock import LOCK_FILE, read_launch
from frazil.host.records import Launch, LaunchKind, ProcessMark


def test_a_launch_of_an_earlier_or_a_later_version_is_read(tmp_path: Path) -> None:
    earlier = {"id": "l1", "kind": "supervised", "launched_at_ms": 7, "parent": None, "writer": None}
    (tmp_path / LOCK_FILE).write_text(json.dumps(earlier))
    assert read_launch(tmp_path) == Launch("l1", LaunchKind.SUPERVISED, 7)
    now = Launch("l2", LaunchKind.FOREGROUND, 8, application="a", streams=("s", "t"), writer=ProcessMark(1, 2.0))
    (tmp_path / LOCK_FILE).write_text(json.dumps({**asdict(now), "of_a_later_version": [1]}))
    assert read_launch(tmp_path) == now
