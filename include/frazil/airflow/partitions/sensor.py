"""A sensor that waits in the triggerer until a table's partition is complete, for DAGs that are not started by assets.

Put `PartitionCompleteSensor(table="demo.flights", partition="{{ ds }}")` before the tasks that read the day.

The sensor polls `frazil.signals` for the window's row. Until then the task is deferred and uses no
worker slot. Its log shows why the window is not complete, whenever the reason changes. A day of a table with hourly
windows is complete when its 24 hours are complete.

It does not decide completeness: the table's partition DAG does, and must run. A window before the first signalled
window never completes, and fails the task immediately.
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
        """Return the facts about the window if it is complete; otherwise defer."""
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
        """Return an event with the facts about the window if all of it was signalled, or with a problem.

        Otherwise return None and a sentence that says why the window is not complete.
        """
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
