"""The overview's last data is available to the next API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.errors import Failure
from frazil.host.heartbeat import Stall, StallKind
from frazil.operations.read_cache import MAX_SAVED_AGE_MS, SavedStatus, load_statuses, save_statuses
from frazil.status.recent_commits import RecentCommits
from frazil.status.state import StreamState, WriterProcess

NOW_MS = 1_700_000_000_000


def known(at_ms: int = NOW_MS, stream: str = "ticks") -> SavedStatus:
    stall = Stall(StallKind.WATERMARK, NOW_MS, "ticks-3", "why")
    status = StreamState(
        "ticks", "demo.ticks", desired="running", writer=WriterProcess("running", pid=7), epoch=1, batch=2, lag=3,
        backpressure_ms=4, last_commit_at_ms=NOW_MS, snapshot_id=2**62,
        table_exists=True, rows=5, problems=(Failure("one", "Do it", "Fenced", "it"),), stall=stall,
        changes={"inserted": 3}, recent_commits=RecentCommits(2.5, (1, 2), 0),
    )  # fmt: skip
    return SavedStatus(stream, "print", at_ms, status)


def test_saved_statuses_are_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "page" / "overview.json"
    assert load_statuses(file, now_ms=NOW_MS) == []
    save_statuses(file, [known()], now_ms=NOW_MS)
    assert load_statuses(file, now_ms=NOW_MS + 1) == [known()]


def test_statuses_that_another_user_may_see_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "overview.json"
    save_statuses(file, [known(), known(stream="other")], now_ms=NOW_MS)
    save_statuses(file, [known(NOW_MS + 5)], now_ms=NOW_MS + 5)
    assert load_statuses(file, now_ms=NOW_MS + 6) == [known(NOW_MS + 5), known(stream="other")]


def test_saved_statuses_that_are_too_old_or_in_the_future_are_not_loaded(tmp_path: Path) -> None:
    file = tmp_path / "overview.json"
    just = known(NOW_MS - MAX_SAVED_AGE_MS + 1, "just")
    save_statuses(file, [known(NOW_MS - MAX_SAVED_AGE_MS), known(NOW_MS + 1, "future"), just], now_ms=NOW_MS)
    assert load_statuses(file, now_ms=NOW_MS) == [just]


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"stream": "ticks"}]', "7"])
def test_a_status_file_of_another_version_is_ignored(tmp_path: Path, text: str) -> None:
    file = tmp_path / "overview.json"
    file.write_text(text)
    assert load_statuses(file, now_ms=NOW_MS) == []
