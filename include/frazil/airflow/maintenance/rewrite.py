"""The operator that rewrites one table in Spark, started only if the table needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from frazil.airflow.spark import SubmitOperator


class RewriteOperator(SubmitOperator):
    """Measure a table and its dead-letter tables, or a route's tables, again, and rewrite them in one Spark session.

    Only due actions run. The task is skipped if no action is due, and in a dry run, which logs the plans. It fails, and
    is retried, if a table cannot be measured.

    :param table: the first of the tables, or the name of the route.
    :param streams: folder of the declared streams.
    """

    template_fields = (*SubmitOperator.template_fields, "table")

    def __init__(self, *, table: str, streams: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.streams = streams

    def execute(self, context: Any) -> None:
        """Raises AirflowFailException if this worker has never read a valid declaration of the table."""
        from frazil.airflow.maintenance import tasks as table_care  # noqa: PLC0415 - a DAG file that is parsed needs no PyIceberg

        params, folder = context["params"], Path(self.streams)
        names = table_care.to_rewrite(self.table, folder, actions=params["actions"], dry_run=params["dry-run"])
        if not names:
            raise AirflowSkipException("no rewrite is due")
        actions = ",".join(action for action in params["actions"] if action != "orphans")
        self.application_args = [*names, "--streams", str(folder), "--actions", actions]
        super().execute(context)
