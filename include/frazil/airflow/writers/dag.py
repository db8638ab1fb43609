"""Builds one DAG per writer application. If several streams share an application, each has its own task in the DAG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from frazil.airflow.dag_ids import STREAM_TASK_PREFIX, writer_dag_id
from frazil.airflow.dag_profile import OnFailure, dag_profile
from frazil.airflow.declared_streams import DeclaredStream, all_streams
from frazil.airflow.writers.operator import HostedStreamOperator, WriterOperator
from frazil.spark_apps import WRITE_APPLICATION, WRITE_STREAM
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_bytes, format_duration

TASK_ID = "write"
RETRIES = 1_000_000
"""Retries cover only a failed worker or triggerer: the supervisor restarts writers without ending the task."""
RETRY_DELAY = timedelta(seconds=10)


def writer_dags(
    streams: str | Path,
    *,
    application: str | Path = WRITE_STREAM,
    shared_application: str | Path = WRITE_APPLICATION,
    on_failure: OnFailure | None = None,
    queue: str | Mapping[str, str] | None = None,
) -> dict[str, DAG]:
    """Return the writers' DAGs by DAG id: one per shared application, and one per other stream.

    If a file becomes unreadable, its DAG does not change, and shows the error. The DAG of a removed stream stays for a
    while, so that its run can stop the writer.

    :param streams: folder of the declared streams.
    :param application: the writer's Python file, by default the package's own.
    :param shared_application: the Python file of shared applications, by default the package's own.
    :param on_failure: notifiers, called when the supervisor gives up on a writer.
    :param queue: the queue of all writers, or queues by application name. Writers run on the hosts whose triggerer
        serves their queue.
    """
    separate: list[DeclaredStream] = []
    shared: dict[str, list[DeclaredStream]] = defaultdict(list)
    for stream in all_streams(Path(streams)):
        application_name = stream.spec.application if stream.spec else None
        (separate if application_name is None else shared[application_name]).append(stream)

    def build_arguments(name: str) -> dict[str, Any]:
        queue_name = queue if isinstance(queue, str) or queue is None else queue.get(name)
        common = {"streams": Path(streams).absolute(), "retries": RETRIES, "retry_delay": RETRY_DELAY}
        return {**common, "queue": queue_name} if queue_name else common

    dags = [
        _writer_dag(stream.name, [stream], Path(application), on_failure, build_arguments(stream.name))
        for stream in separate
    ]
    for name, members in shared.items():
        present = [stream for stream in members if not stream.removed]
        arguments = build_arguments(name)
        dags.append(_writer_dag(name, present, Path(shared_application), on_failure, arguments, shared=True))
    return {dag.dag_id: dag for dag in dags}


def _writer_dag(  # noqa: PLR0913 - the arguments of a factory
    name: str,
    streams: Sequence[DeclaredStream],
    application: Path,
    on_failure: OnFailure | None,
    arguments: Mapping[str, Any],
    *,
    shared: bool = False,
) -> DAG:
    """Return a writer's DAG. All its tasks get `arguments`."""
    description = f"{len(streams)} streams in one application" if shared else _summary(streams[0])
    text = _shared_doc_md(name, streams) if shared else _doc_md(streams[0])
    with DAG(writer_dag_id(name), description=description, doc_md=text, **_profile(name, streams, on_failure)) as dag:
        path, doc = application.absolute(), WriterOperator.__doc__
        WriterOperator(task_id=TASK_ID, stream=name, application=path, shared=shared, doc_md=doc, **arguments)
        for stream in streams if shared else ():
            task_id = f"{STREAM_TASK_PREFIX}{stream.name}"
            HostedStreamOperator(
                task_id=task_id, stream=stream.name, application=name, doc_md=_doc_md(stream), **arguments
            )
    return dag


def _shared_doc_md(name: str, members: Sequence[DeclaredStream]) -> str:
    problems = [f"```\n{stream.problem}\n```" for stream in members if stream.problem]
    rows = [f"| {stream.name} | {_summary(stream)} |" for stream in members]
    return "\n".join(
        [
            f"### The streams of the application {name}",
            "",
            *(["**Declarations with a problem:**", "", *problems, ""] if problems else []),
            "| | |",
            "|---|---|",
            *rows,
            "",
            f"""Pausing this DAG leaves the application running. `frazil pause`, `resume` and `restart` take the name of
a stream, or `{name}` for all of them. In this DAG, *Clear* of `{TASK_ID}` replaces the whole application, and *Mark
failed* ends it until it is cleared or resumed. On a stream's task, *Clear* restarts and *Mark failed* pauses only that
stream.
""",
        ]
    )


def _profile(name: str, streams: Sequence[DeclaredStream], on_failure: OnFailure | None) -> dict[str, Any]:
    removed = all(stream.removed for stream in streams)
    specs = [stream.spec for stream in streams if stream.spec]
    return {
        "schedule": None if removed else "@continuous",
        "max_active_runs": 1,
        "dagrun_timeout": None,
        **dag_profile(
            f"Writer: {name}",
            purpose="writer",
            streams=[stream.name for stream in streams],
            specs=specs,
            tables=[spec.table.identifier for spec in specs],
            marks=["removed"] if removed else ["broken"] if any(stream.problem for stream in streams) else [],
            on_failure=on_failure,
        ),
    }


def _summary(stream: DeclaredStream) -> str:
    if stream.spec is None:
        return f"The declaration of {stream.name} cannot be read"
    if stream.spec.description:
        return stream.spec.description
    return f"Kafka {stream.spec.source.topics_text} into Iceberg {stream.spec.table.identifier}"


def _doc_md(stream: DeclaredStream) -> str:
    lines = [f"### {_summary(stream)}", ""]
    if stream.problem:
        lines += ["**This declaration has a problem:**", "", "```", stream.problem, "```", ""]
    if stream.spec is not None:
        lines += ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in _facts(stream.spec).items()), ""]
    return "\n".join(lines) + (
        f"""Pausing this DAG leaves the writer running. To operate the writer:

- `frazil pause {stream.name}`: the writer stops after the current batch, and stays stopped.
- `frazil resume {stream.name}`: the writer runs again, even if the supervisor gave up.
- `frazil restart {stream.name}`, or *Clear* here: a new writer replaces it after the current batch.
- *Mark failed* or *Mark success* here: same as `frazil pause {stream.name}`.
- `frazil status {stream.name}`: shows its state.
"""
    )


def _facts(spec: StreamSpec) -> dict[str, str]:
    return {
        "topics": spec.source.topics_text,
        "table": spec.table.identifier,
        "event time": spec.event_time.column,
        "partitioned by": ", ".join(map(str, spec.partition_by)) or "nothing",
        "commits": f"every {format_duration(spec.commit.interval)}, or {format_bytes(spec.commit.size)}",
        "lateness": format_duration(spec.lateness),
        "dead letters": spec.dead_letter_table,
    }
