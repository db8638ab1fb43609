"""The DAG `frazil_backfill`: a form to add records that are missing from a stream's table.

Three tasks write each record exactly once.

- `plan` validates the form and logs which records a run would write. A dry run ends here.
- `stage` is the Spark application, with the form's resources. It writes chunk by chunk to the stream's backfill branch.
- `publish` compares the branch with its source and the table, and publishes the branch in one commit.

After an interruption, clear the task, or trigger a run with the same bounds: the backfill continues where it stopped.
If an operator abandons a run's backfill, the run fails even if its tasks are cleared: start a new run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, get_current_context
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow.dag_profile import (
    FrazilShortCircuit,
    OnFailure,
    dag_profile,
    fail_on_user_errors,
    report,
    run_name,
    task,
)
from frazil.airflow.declared_streams import declared_streams
from frazil.airflow.spark import SPARK_CONNECTION, SubmitOperator, spark_arguments
from frazil.spark_apps import BACKFILL

if TYPE_CHECKING:
    from frazil.backfill.run import Backfill

log = logging.getLogger(__name__)

DAG_ID = "frazil_backfill"


def backfill_dag(
    streams: str | Path,
    *,
    application: str | Path = BACKFILL,
    conn_id: str = SPARK_CONNECTION,
    on_failure: OnFailure | None = None,
) -> DAG:
    """Return the DAG that backfills any declared stream that permits it, one run at a time.

    :param streams: folder of the declared streams.
    :param application: the PySpark file, by default the package's own.
    :param conn_id: the Airflow connection to the Spark cluster that stages.
    :param on_failure: notifiers, called when a backfill needs attention.
    """
    folder = Path(streams).absolute()
    with DAG(
        DAG_ID,
        description="Adds records from Kafka or files that are missing from a stream's table",
        doc_md=__doc__,
        schedule=None,
        max_active_runs=1,
        params=_form(
            [stream.name for stream in declared_streams(folder) if stream.spec is not None and stream.spec.coordinates]
        ),
        **dag_profile(
            "Backfill a stream", purpose="backfill", on_failure=on_failure, retries=2, retry_delay=timedelta(minutes=1)
        ),
    ) as dag:
        request: Any = task(plan, FrazilShortCircuit)(str(folder))
        request >> _stage(folder, application, conn_id) >> task(publish)(str(folder), request)
    return dag


class StageOperator(SubmitOperator):
    """Starts the Spark application that stages a backfill. An abandoned backfill fails the task without retries.

    :param streams: folder of the declared streams.
    """

    def __init__(self, *, streams: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.streams = streams

    def execute(self, context: Any) -> None:
        request = context["ti"].xcom_pull(task_ids="plan")
        self._check_not_abandoned(request)
        try:
            super().execute(context)
        except Exception:
            self._check_not_abandoned(request)
            raise

    def _check_not_abandoned(self, request: dict[str, Any]) -> None:
        from frazil.backfill.rules import check_run_not_abandoned  # a DAG file that is parsed needs no PyIceberg
        from frazil.commit.open_streams import open_read_only
        from frazil.errors import BackfillAbandoned
        from frazil.spec.load import find_stream

        spec = find_stream(Path(self.streams), request["stream"])
        last = open_read_only(spec).tables.last_backfill()
        try:
            check_run_not_abandoned(last, request.get("run"))
        except BackfillAbandoned as error:
            raise AirflowFailException(f"BackfillAbandoned: {error}") from error


def _stage(folder: Path, application: str | Path, conn_id: str) -> StageOperator:
    return StageOperator(
        task_id="stage",
        streams=str(folder),
        application=str(Path(application).absolute()),
        name="frazil backfill {{ params.stream }}",
        application_args=[
            "{{ params.stream }}", "--streams", str(folder),
            "--request", "{{ ti.xcom_pull(task_ids='plan') | tojson }}",
        ],
        conf={
            "spark.cores.max": "{{ params.cores }}",
            # Limits the concurrent tasks, even if the connection's master has more cores.
            "spark.default.parallelism": "{{ params.cores }}",
            "spark.driver.memory": "{{ params['driver-memory'] }}",
        },
        **spark_arguments("backfill", conn_id),
    )  # fmt: skip


def _form(streams: list[str]) -> dict[str, Param]:
    def moment(title: str, section: str) -> Param:
        return Param(None, type=["null", "string"], format="date-time", title=title, section=section)

    def offsets(title: str) -> Param:
        example = 'Such as {"topic": {"0": 1200}}; partitions that are not listed have no bound.'
        return Param(None, type=["null", "object"], title=title, description=example, section="Kafka offsets")

    return {
        "stream": Param(streams[0] if streams else None, type="string", enum=streams or [""], title="Stream"),
        "dry-run": Param(True, type="boolean", title="Dry run", description="Only log what the run would write."),
        "target": Param(
            "table", type="string", enum=["table", "branch"], title="Target",
            description="branch: stage and audit the rows on a branch; a later run with `table` publishes them.",
        ),
        "from-time": moment("From", "Kafka timestamps"),
        "to-time": moment("To (exclusive)", "Kafka timestamps"),
        "from-offsets": offsets("From"),
        "to-offsets": offsets("To (exclusive)"),
        "from-event-time": moment("From", "Event time"),
        "to-event-time": moment("To (exclusive)", "Event time"),
        "files": Param(
            None, type=["null", "string"], title="Files", section="Files instead of Kafka",
            description="Path or URI of a file or a folder of files: Parquet or JSON lines with the Kafka coordinates.",
        ),
        "chunk-records": Param(
            1_000_000, type="integer", minimum=1, title="Records per chunk", section="Resources",
            description="Approximate records per commit to the branch. An interruption repeats at most one chunk.",
        ),
        "cores": Param(1, type="integer", minimum=1, title="Concurrent tasks", section="Resources"),
        "driver-memory": Param("1g", type="string", pattern=r"^\d+[mg]$", title="Driver memory", section="Resources"),
    }  # fmt: skip


def plan(streams: str) -> dict[str, Any] | None:
    """Log what the backfill would write. Return the request; None in a dry run, or if no records are missing."""
    from frazil.backfill.estimate import estimate, estimate_messages  # not when a DAG file is parsed

    context = get_current_context()
    params = dict(context["params"])
    request = {key: value for key, value in params.items() if key not in {"dry-run", "cores", "driver-memory"}}
    with _open_backfill(streams, {**request, "run": run_name(context)}) as backfill:
        backfill.check_run_not_abandoned()
        last = backfill.last()
        estimated = estimate(backfill, backfill.plan(last))
        report(" ".join(estimate_messages(estimated, stream=backfill.request.stream, mode=backfill.spec.sinks.mode)))
        if last and last.is_open:
            log.info("Continuing backfill %s of this request, which has %d chunks", last.id, last.chunks)
        if params["dry-run"] or not (estimated.max_records or (last and last.is_open)):
            return None
        return backfill.request.model_dump(mode="json", by_alias=True, exclude_none=True)


def publish(streams: str, request: dict[str, Any]) -> dict[str, Any] | None:
    """Audit and publish the backfill. Return its last state; None if no records were missing."""
    with _open_backfill(streams, request) as backfill:
        last = backfill.publish()
        if last is None:
            report("Nothing is missing")
            return None
        report(f"The backfill {last.id} is {last.state}: {last.records:,} rows, {last.rejected:,} dead letters")
        return last.to_json()


@contextmanager
def _open_backfill(streams: str, request: dict[str, Any]) -> Iterator[Backfill]:
    from frazil.backfill.request import parse_request
    from frazil.backfill.run import open_backfill
    from frazil.spec.load import find_stream

    with fail_on_user_errors():
        parsed = parse_request(request)
        with open_backfill(find_stream(Path(streams), parsed.stream), parsed) as backfill:
            yield backfill
