"""How a stream's history shows a reset."""

from __future__ import annotations

from datetime import UTC, datetime

from frazil.commit.reset_plan import OffsetMove
from frazil.operations.stream_actions import ResetTarget, reset_message


def test_a_reset_is_recorded_with_the_user_and_the_skipped_and_repeated_offsets() -> None:
    skips, repeats = (OffsetMove("ticks", 0, held=10, target=92, first=0, end=92), OffsetMove("ticks", 1, 5, 4, 0, 9))
    latest = reset_message(ResetTarget("latest"), [skips], by="ana, Airflow")
    assert latest == "the stream was reset to latest by ana, Airflow: it skips 82 offsets"
    at = ResetTarget("timestamp", at=datetime(2013, 12, 30, tzinfo=UTC))
    did = "it skips 82 offsets and reads 1 offset again"
    both = f"the stream was reset to timestamp 2013-12-30 00:00:00Z by ana: {did}"
    assert reset_message(at, [skips, repeats], by="ana") == both
    nothing = "the stream was reset to marker by ana: it skips no offsets and rereads none"
    assert reset_message(ResetTarget("marker"), [], by="ana") == nothing
