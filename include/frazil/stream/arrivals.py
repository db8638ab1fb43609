"""Finds the last time at which a stream had committed every record in Kafka. Pending records arrived later. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from frazil.offsets.spans import TopicPartition
from frazil.stream.plan import PlannerReport

MAX_REPORTS = 120
"""Maximum number of kept reports. With more, every second one is dropped; the result is then earlier, never later."""


class CaughtUpTracker:
    def __init__(self, caught_up_at_ms: int | None = None) -> None:
        self.caught_up_at_ms = caught_up_at_ms
        self._reports: list[PlannerReport] = []

    def update(self, report: PlannerReport | None, offsets: Mapping[TopicPartition, int]) -> int | None:
        """Add a report. Return the time of the newest report whose records are all before the committed `offsets`."""
        before_ms = self._reports[-1].observed_at_ms if self._reports else -1
        # A partition may have got records between the last known end and the loss of its leader.
        if report is not None and not report.leaderless and report.observed_at_ms > before_ms:
            if self._reports and _has_same_records(self._reports[-1], report):
                self._reports.pop()
            self._reports.append(report)
        while self._reports and _is_committed(self._reports[0], offsets):
            self.caught_up_at_ms = self._reports.pop(0).observed_at_ms
        if len(self._reports) > MAX_REPORTS:
            del self._reports[1::2]
        return self.caught_up_at_ms


def _has_same_records(one: PlannerReport, other: PlannerReport) -> bool:
    return one.ends == other.ends and one.in_transactions == other.in_transactions


def _is_committed(report: PlannerReport, offsets: Mapping[TopicPartition, int]) -> bool:
    ends = {tp: end + report.in_transactions.get(tp, 0) for tp, end in report.ends.items()}
    return not replace(report, ends=ends).unread(offsets)
