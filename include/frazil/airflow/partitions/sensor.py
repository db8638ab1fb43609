"""A sensor that waits in the triggerer until a table's partition is complete:
`PartitionCompleteSensor(table="demo.flights", partition="{{ ds }}")`.

The table's partition DAG decides completeness, and must run. A day of hourly windows is complete when its 24 hours are.
A window before the first signalled window fails the task immediately.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow.partitions.polling_trigger import Payload, PollingTrigger
from frazil.home import streams_folder

if TYPE_CHECKING:
    from airflow.sdk import Context


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
        trigger = PartitionTrigger(
            table=self.table, partition=self.partition, streams=self.streams, poll_seconds=self.poke_interval
        )
        event, sentence = trigger.attempt()
        if event is None:
            self.log.info("%s", sentence)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return self.execute_complete(context, event)

    def execute_complete(self, context: Context, event: Payload) -> Any:  # noqa: ARG002 - as above
        """Return the trigger's result. Raises AirflowFailException if the window can never complete."""
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
        found = load_window_status(streams_feeding(Path(streams), table), partition)
        if found.never:
            return {"problem": found.waits_for}, ""
        if found.signals:
            return {"problem": None, "windows": {s.partition: window_facts(s) for s in found.signals}}, ""
        return None, f"{table} {partition}: {found.waits_for}"
