"""The task of a writer, and the task of a stream in a shared application. Both defer immediately."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from frazil.spark_apps import WRITE_STREAM

if TYPE_CHECKING:
    from airflow.sdk import Context


class WriterOperator(BaseOperator):
    """Keeps the writer of one declared stream running for as long as the task is deferred.

    How it works: the task defers to a `WriterTrigger`, which launches the writer as a detached process, watches it, and
    restarts it when it dies. The task uses no worker slot. Scheduler, API server, workers and triggerer may be
    restarted while the writer runs. A retry, or a later run, finds the running writer and continues to supervise it.

    *Mark failed* (or *success*) stops the writer after the current batch. The writer stays stopped until `frazil resume
    STREAM`, or until a user clears the next run, which waits without a writer. *Clear* replaces the writer with a new
    writer after the current batch. Pausing the DAG does not stop the writer: `frazil pause STREAM` does.

    The task fails only when the supervisor gives up: after an error that a restart cannot fix, or after repeated
    crashes without a commit. The next run waits without a writer, and shows the fix.

    What it does *not* do: start a writer on a host other than the triggerer's, or move a writer that runs elsewhere.

    :param stream: name of the declared stream.
    :param streams: folder of the declared streams.
    :param application: the writer's Python file, by default the package's own.
    :param poll_seconds: seconds between two observations of the writer.
    :param shared: whether `stream` is the name of an application that streams share, and `application` its Python file.
    :param queue: the queue of the triggerer (`airflow triggerer --queues …`) on whose host the writer runs, if
        Airflow's `[triggerer] queues_enabled` is set.
    """

    ui_color = "#cfe8f3"

    def __init__(
        self,
        *,
        stream: str,
        streams: str | Path,
        application: str | Path = WRITE_STREAM,
        poll_seconds: float = 2.0,
        shared: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.shared = shared
        self.stream = stream
        self.streams = str(streams)
        self.application = str(application)
        self.poll_seconds = poll_seconds

    def execute(self, context: Context) -> None:
        from frazil.airflow.lineage_parent import parent_id  # a DAG file that is parsed needs no trigger
        from frazil.airflow.writers.trigger import WriterTrigger
        from frazil.host.supervising_run import write_supervising_run

        instance = context["ti"]
        write_supervising_run(self.stream, instance.run_id, instance.try_number)
        self.log.info("The triggerer now supervises the writer of %s.", self.stream)
        trigger = WriterTrigger(
            stream=self.stream,
            streams=self.streams,
            application=self.application,
            poll_seconds=self.poll_seconds,
            shared=self.shared,
            parent=parent_id(context),
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:  # noqa: ARG002
        from frazil.host.supervising_run import confirm_given_up  # needed by a running task only

        reason = str(event["reason"])
        confirm_given_up(self.stream, event["subject"], reason=reason, table_fingerprint=event["table_fingerprint"])
        raise AirflowFailException(f"{self.stream}: {event['cause']}: {reason}")


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
        from frazil.airflow.writers.hosted_trigger import HostedStreamTrigger
        from frazil.host.supervising_run import write_supervising_run  # needed by a running task only

        instance = context["ti"]
        write_supervising_run(self.stream, instance.run_id, instance.try_number)
        trigger = HostedStreamTrigger(
            stream=self.stream, application=self.application, streams=self.streams, resume=instance.try_number > 1
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:  # noqa: ARG002
        raise AirflowFailException(f"{self.stream}: {event['reason']}")
