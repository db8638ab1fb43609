"""Makes and sends events with OpenLineage's own client, which needs the extra `lineage`.

What a backend gets, and how, is declared by the client's variables: `OPENLINEAGE_URL`, `OPENLINEAGE_CONFIG`, or
`OPENLINEAGE__TRANSPORT__...`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    symlinks_dataset,
)
from openlineage.client.uuid import generate_new_uuid

from frazil import __version__
from frazil.lineage.facts import Dataset, Settings, State, Totals

PRODUCER = f"https://pypi.org/project/frazil/{__version__}"


class Client:
    """Sends the events of one run. Its methods raise what the transport raises, and block as long as that does."""

    def __init__(self, settings: Settings, job: str) -> None:
        self.run_id = str(generate_new_uuid())
        self._settings, self._job = settings, job
        self._client = OpenLineageClient()

    def send(  # noqa: PLR0913 - what an event says
        self,
        state: State,
        at_ms: int,
        *,
        inputs: tuple[Dataset, ...],
        output: Dataset,
        totals: Totals,
        error: str | None = None,
    ) -> None:
        """Send one event."""
        self._client.emit(
            RunEvent(
                eventTime=datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(),
                eventType=RunState[state],
                run=self._run(error),
                job=self._described_job(),
                producer=PRODUCER,
                inputs=[InputDataset(one.namespace, one.name) for one in inputs],
                outputs=[_output(output, totals)],
            )
        )

    def close(self, timeout_s: float) -> None:
        self._client.close(timeout_s)

    def _run(self, error: str | None) -> Run:
        engine = processing_engine_run.ProcessingEngineRunFacet(version=__version__, name="frazil")
        run = Run(runId=self.run_id, facets={"processing_engine": engine})
        facets = run.facets if run.facets is not None else {}
        if self._settings.parent is not None:
            namespace, name, run_id = self._settings.parent
            parent = parent_run.ParentRunFacet(
                run=parent_run.Run(runId=run_id), job=parent_run.Job(namespace=namespace, name=name)
            )
            facets["parent"] = parent
        if error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "PYTHON")
        return run

    def _described_job(self) -> Job:
        kind = job_type_job.JobTypeJobFacet(processingType="STREAMING", integration="FRAZIL", jobType="JOB")
        return Job(namespace=self._settings.namespace, name=self._job, facets={"jobType": kind})


def _output(table: Dataset, totals: Totals) -> OutputDataset:
    identifier = symlinks_dataset.Identifier(namespace=table.catalog or "", name=table.identifier or "", type="TABLE")
    fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in table.columns]
    written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=totals.records, size=totals.bytes, fileCount=totals.files
    )
    made = OutputDataset(
        table.namespace,
        table.name,
        facets={
            "symlinks": symlinks_dataset.SymlinksDatasetFacet([identifier]),
            "schema": schema_dataset.SchemaDatasetFacet(fields=fields),
        },
        outputFacets={"outputStatistics": written},
    )
    if totals.snapshot_id is not None and made.facets is not None:
        made.facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(totals.snapshot_id))
    return made
