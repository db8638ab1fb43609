"""The operator that stages a backfill in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow.spark import SubmitOperator


class StageOperator(SubmitOperator):
    """Start the Spark application that stages a backfill, unless an operator has abandoned the backfill.

    An abandoned backfill fails the task for good. The task checks this before Spark starts, and again if Spark fails.

    :param streams: folder of the declared streams.
    """

    def __init__(self, *, streams: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.streams = streams

    def execute(self, context: Any) -> None:
        """Raises AirflowFailException for an abandoned backfill; otherwise the errors of spark-submit."""
        request = context["ti"].xcom_pull(task_ids="plan")
        self._check_wanted(request)
        try:
            super().execute(context)
        except Exception:
            self._check_wanted(request)
            raise

    def _check_wanted(self, request: dict[str, Any]) -> None:
        from frazil.backfill.rules import check_wanted  # noqa: PLC0415 - a DAG file that is parsed needs no PyIceberg
        from frazil.commit.backfill_marker import read_backfill  # noqa: PLC0415 - as above
        from frazil.commit.opened import read_stream  # noqa: PLC0415 - as above
        from frazil.errors import BackfillAbandoned  # noqa: PLC0415 - as above
        from frazil.spec.load import find_stream  # noqa: PLC0415 - as above

        spec = find_stream(Path(self.streams), request["stream"])
        properties = read_stream(spec).tables.main.refresh().metadata.properties
        try:
            check_wanted(read_backfill(properties, spec.name), request.get("run"))
        except BackfillAbandoned as error:
            raise AirflowFailException(f"BackfillAbandoned: {error}") from error
