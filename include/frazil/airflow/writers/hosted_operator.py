"""The task of one stream in the DAG of a shared application. It shows the stream's state but does not supervise it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context


class HostedStreamOperator(BaseOperator):
    """Shows one stream of a shared application, for as long as the application runs it.

    The application supervises its streams itself. If it gives up on the stream, this task fails. To run the stream
    again, fix the cause, then *Clear* this task or use `frazil resume STREAM`.

    *Clear* of a running stream's task restarts the stream. *Mark failed* (or *success*) pauses the stream until this
    task is cleared or the stream is resumed. *Clear* does not undo `frazil pause`. These actions do not affect the
    other streams.

    :param stream: name of the declared stream.
    :param application: name of the application.
    :param streams: folder of the declared streams.
    """

    ui_color = "#e6f2ee"

    def __init__(self, *, stream: str, application: str, streams: str | Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stream, self.application, self.streams = stream, application, str(streams)

    def execute(self, context: Context) -> None:
        """Defer to the trigger. After a failure, clearing the task lets the stream run again."""
        from frazil.airflow.writers.hosted_trigger import HostedStreamTrigger  # as in the operator
        from frazil.host.claim import Claim, write_claim  # needed by a running task only

        instance = context["ti"]
        write_claim(self.stream, Claim(instance.run_id, instance.try_number))
        trigger = HostedStreamTrigger(
            stream=self.stream, application=self.application, streams=self.streams, resume=instance.try_number > 1
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:  # noqa: ARG002
        raise AirflowFailException(f"{self.stream}: {event['reason']}")
