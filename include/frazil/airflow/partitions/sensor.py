"""A sensor that waits in the triggerer until a table's partition is complete, and the operator that signals windows:
`PartitionCompleteSensor(table="demo.flights", partition="{{ ds }}")`.

The table's partition DAG decides completeness, and must run. A day of hourly windows is complete when its 24 hours are.
A window before the first signalled window fails the task immediately. The triggers read the metadata themselves, in
about 50 ms. A worker takes seconds to start, so it only writes signals and sends events.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.branch import BaseBranchOperator
from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.triggers.base import BaseTrigger, TaskSkippedEvent, TriggerEvent

from frazil.airflow.shown_state import MIN_DEFERRAL_S, ShownState
from frazil.errors import FrazilError
from frazil.home import streams_folder
from frazil.spec.units import mask_numbers

if TYPE_CHECKING:
    from airflow.sdk import Context

THREADS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="frazil-polls")
"""A pool of its own, so that an unresponsive catalog does not block the triggerer's other work."""

MIN_LOG_INTERVAL_S = 3_600.0
"""Minimum time between two log lines that differ only in their numbers: Airflow never rotates a deferred task's log."""
MAX_SHAPES = 30
"""Maximum number of lines per MIN_LOG_INTERVAL_S. Lines that differ only in numbers count once."""

FAILED_PREFIX = "the check failed and will be retried"

Payload = dict[str, Any]
"""The event's payload for the task. `problem` is set if polling again would not help; `removed` skips the task."""


class PollingTrigger(BaseTrigger):
    """Calls `poll` in a thread until it fires. Logs a new reason to wait at once, but new numbers once an hour."""

    def __init__(self, *, poll_seconds: float, **arguments: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.poll_seconds, self.arguments = poll_seconds, arguments

    def serialize(self) -> tuple[str, dict[str, Any]]:
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {**self.arguments, "poll_seconds": self.poll_seconds}

    @abstractmethod
    def poll(self) -> tuple[Payload | None, str]:
        """Return the event to fire, or None and a sentence that says why the task waits."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        shown_state = ShownState(self.log.info)
        logged, wait_s = "", max(self.poll_seconds, MIN_DEFERRAL_S)
        logged_s: dict[str, float] = {}
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self.poll_seconds
            event, sentence = await asyncio.get_running_loop().run_in_executor(THREADS, self.attempt)
            if event is not None and event.get("removed"):
                # The DAG is about to be removed with its declaration; then no worker could end the task.
                self.log.info("%s", event["removed"])
                yield TaskSkippedEvent()
                return
            if event is not None:
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                return
            fails = sentence.startswith(FAILED_PREFIX)
            shown_state.show(self.task_instance, "unreadable" if fails else "waiting", sentence)
            is_news = (fails or logged.startswith(FAILED_PREFIX)) and mask_numbers(sentence) != mask_numbers(logged)
            now_s = time.monotonic()
            logged_s = {kind: at_s for kind, at_s in logged_s.items() if now_s - at_s < MIN_LOG_INTERVAL_S}
            if is_news or (
                sentence != logged and mask_numbers(sentence) not in logged_s and len(logged_s) < MAX_SHAPES
            ):
                self.log.info("%s", sentence)
                logged, logged_s[mask_numbers(sentence)] = sentence, now_s

    def attempt(self) -> tuple[Payload | None, str]:
        """Return the result of `poll`. A permanent error becomes an event, any other error a sentence."""
        try:
            return self.poll()
        except FrazilError as error:
            if not error.restartable:
                return {"problem": f"{type(error).__name__}: {error}"}, ""
            return None, f"{FAILED_PREFIX}: {error}"
        except Exception as error:  # anything that a catalog, storage or a network raises
            return None, f"{FAILED_PREFIX}: {error!r}"


class PartitionCompleteSensor(BaseSensorOperator):
    """Succeeds when a window of event time is complete. Its XCom has the facts about the window, by window key.

    :param table: the table's identifier, such as `demo.flights`.
    :param partition: an hour (`2013-12-30T15`) or a day (`2013-12-30`). (templated)
    :param streams: folder of the declared streams; by default FRAZIL_STREAMS, or else `include/streams`.
    """

    template_fields: Sequence[str] = ("table", "partition")

    def __init__(self, *, table: str, partition: str, streams: str | Path | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table, self.partition = table, partition
        self.streams = str(Path(streams or streams_folder()).absolute())

    def execute(self, context: Context) -> Any:
        table, partition, streams = self.table, self.partition, self.streams
        trigger = PartitionTrigger(table=table, partition=partition, streams=streams, poll_seconds=self.poke_interval)
        event, sentence = trigger.attempt()
        if event is None:
            self.log.info("%s", sentence)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return self.execute_complete(context, event)

    def execute_complete(self, context: Context, event: Payload) -> Any:  # noqa: ARG002 - as above
        if event["problem"]:
            raise AirflowFailException(event["problem"])
        return event["windows"]


class PartitionTrigger(PollingTrigger):
    """Polls for the signals of a window. Its arguments are `table`, `partition` and `streams`."""

    def poll(self) -> tuple[Payload | None, str]:
        from frazil.airflow.declared_streams import streams_feeding
        from frazil.airflow.partitions.tasks import window_facts  # loads PyIceberg
        from frazil.signals.completion import load_window_status

        table, partition, streams = (self.arguments[key] for key in ("table", "partition", "streams"))
        status = load_window_status(streams_feeding(Path(streams), table), partition)
        if status.never:
            return {"problem": status.waits_for}, ""
        if status.signals:
            return {"problem": None, "windows": {s.partition: window_facts(s) for s in status.signals}}, ""
        return None, f"{table} {partition}: {status.waits_for}"


LATE_ROWS_INTERVAL_S = 600.0
"""Interval between searches for late rows. A search loads all tables of a template, maybe thousands."""


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
        from frazil.airflow.declared_streams import has_no_stream
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
        from frazil.airflow.declared_streams import has_no_stream
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
