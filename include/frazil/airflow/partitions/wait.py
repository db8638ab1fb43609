"""Waits in the triggerer until a table has windows to signal, or another process has signalled a window.

The deferred task reads the metadata itself, in about 50 ms. A worker takes seconds to start, so it only writes signals
and sends events.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.branch import BaseBranchOperator
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from frazil.airflow.declared_streams import has_no_stream
from frazil.airflow.partitions.sensor import Payload, PollingTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

LATE_ROWS_INTERVAL_S = 600.0
"""Interval at which all tables of a template, maybe thousands, are loaded to find late rows."""


class CompletionOperator(BaseBranchOperator):
    """Signals the complete windows of one table, and starts the downstream tasks that have something to do.

    :param expectations: folder of the quality gates' suites; None for no gates.
    :param poll_seconds: interval between reads of the table's metadata.
    """

    def __init__(
        self, *, table: str, streams: Path, expectations: Path | None, poll_seconds: float, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.table, self.streams, self.poll_seconds = table, str(streams), poll_seconds
        self.expectations = str(expectations) if expectations else None

    def execute(self, context: Context) -> Any:
        from frazil.airflow.partitions import tasks as windows  # a DAG file that is parsed needs no PyIceberg

        if has_no_stream(Path(self.streams), self.table):
            raise AirflowSkipException(_removal_message(self.table))
        number, following = windows.find_work(self.table, Path(self.streams), context)
        if following:
            return self.do_branch(context, following)
        ready, sentence = windows.check_completeness(self.table, Path(self.streams), after=number)
        if not ready:
            self.log.info("%s: %s", self.table, sentence)
            arguments = {"table": self.table, "streams": self.streams, "number": number}
            trigger = CompletionTrigger(**arguments, poll_seconds=self.poll_seconds)
            self.defer(trigger=trigger, method_name="execute_complete")
        return self._signal_and_branch(context)

    def execute_complete(self, context: Context, event: Payload) -> Any:
        if event["problem"]:
            raise AirflowException(f"cannot read {self.table}: {event['problem']}")
        return self._signal_and_branch(context)

    def _signal_and_branch(self, context: Context) -> Any:
        from frazil.airflow.partitions import tasks as windows

        suites = Path(self.expectations) if self.expectations else None
        following = windows.signal_complete_windows(self.table, Path(self.streams), context, expectations=suites)
        return self.do_branch(context, following or None)


def _removal_message(table: str) -> str:
    return f"{table}: its streams were removed, so no more windows will complete and this DAG will be removed"


class CompletionTrigger(PollingTrigger):
    """Fires when windows can be signalled, or when another process has added a signal after `number`."""

    _searched_s: float | None = None
    """Time (monotonic) of the last search for late rows; None before the first poll."""

    def poll(self) -> tuple[Payload | None, str]:
        from frazil.airflow.partitions import tasks as windows  # loads PyIceberg

        table, streams, number = (self.arguments[key] for key in ("table", "streams", "number"))
        if has_no_stream(Path(streams), table):
            return {"removed": _removal_message(table)}, ""
        now_s = time.monotonic()
        search = now_s - (self._searched_s or now_s) >= LATE_ROWS_INTERVAL_S
        ready, sentence = windows.check_completeness(table, Path(streams), after=number, reopened=search)
        if search or self._searched_s is None:
            self._searched_s = now_s
        return ({"problem": None} if ready else None), f"{table}: {sentence}"
