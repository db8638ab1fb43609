"""Creates and sends events with OpenLineage's client, which its own environment variables configure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import attr
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    base_subset_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    nominal_time_run,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    symlinks_dataset,
)
from openlineage.client.uuid import generate_new_uuid

from frazil import __version__
from frazil.lineage.facts import Dataset, LineageSettings, LineageState, RunFacts

PRODUCER = f"https://pypi.org/project/frazil/{__version__}"


@attr.define
class ChangesFacet(RunFacet):
    counts: dict[str, int]

    @staticmethod
    def _get_schema() -> str:
        return f"{PRODUCER}#changes"


@attr.define
class MaintenanceFacet(RunFacet):
    actions: list[dict[str, Any]]

    @staticmethod
    def _get_schema() -> str:
        return f"{PRODUCER}#maintenance"


class LineageClient:
    """Sends the events of one run. Methods raise the transport's errors, and block as long as the transport does."""

    def __init__(self, settings: LineageSettings, job: str, *, streaming: bool = True) -> None:
        self.run_id = str(generate_new_uuid())
        self._settings, self._job = settings, job
        processing = "STREAMING" if streaming else "BATCH"
        self._job_type = job_type_job.JobTypeJobFacet(processingType=processing, integration="FRAZIL", jobType="JOB")
        self._client = OpenLineageClient()

    def send(self, state: LineageState, at_ms: int, facts: RunFacts) -> None:
        self._client.emit(
            RunEvent(
                eventTime=datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(),
                eventType=RunState[state],
                run=self._run(facts),
                job=Job(namespace=self._settings.namespace, name=self._job, facets={"jobType": self._job_type}),
                producer=PRODUCER,
                inputs=[
                    InputDataset(dataset.namespace, dataset.name, facets=_table_facets(dataset))
                    for dataset in facts.inputs
                ],
                outputs=[] if facts.output is None else [_output_dataset(facts.output, facts)],
            )
        )

    def close(self, timeout_s: float) -> None:
        self._client.close(timeout_s)

    def _run(self, facts: RunFacts) -> Run:
        facets: dict[str, RunFacet] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(version=__version__, name="frazil")
        }
        if self._settings.parent is not None:
            namespace, name, run_id = self._settings.parent
            facets["parent"] = parent_run.ParentRunFacet(
                run=parent_run.Run(runId=run_id), job=parent_run.Job(namespace=namespace, name=name)
            )
        if facts.error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(facts.error, "PYTHON")
        if facts.day is not None:
            begin = datetime.combine(facts.day, datetime.min.time(), UTC)
            facets["nominalTime"] = nominal_time_run.NominalTimeRunFacet(
                nominalStartTime=begin.isoformat(), nominalEndTime=(begin + timedelta(days=1)).isoformat()
            )
        if facts.totals is not None and facts.totals.changes:
            facets["frazil_changes"] = ChangesFacet(dict(facts.totals.changes))
        if facts.actions:
            facets["frazil_maintenance"] = MaintenanceFacet([dict(action) for action in facts.actions])
        return Run(runId=self.run_id, facets=facets)


def _table_facets(table: Dataset) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {}
    if table.identifier is not None:
        identifier = symlinks_dataset.Identifier(namespace=table.catalog or "", name=table.identifier, type="TABLE")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([identifier])
        fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in table.columns]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
    if table.snapshot_id is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(table.snapshot_id))
    return facets


def _output_dataset(table: Dataset, facts: RunFacts) -> OutputDataset:
    facets: dict[str, OutputDatasetFacet] = {}
    if (totals := facts.totals) is not None:
        table = replace(table, snapshot_id=totals.snapshot_id)
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        facets["outputStatistics"] = statistics(rowCount=totals.records, size=totals.bytes, fileCount=totals.files)
    if facts.day is not None:
        day_partition = base_subset_dataset.Partition(dimensions={"day": str(facts.day)})
        condition = base_subset_dataset.PartitionSubsetCondition(partitions=[day_partition])
        facets["subset"] = base_subset_dataset.OutputSubsetOutputDatasetFacet(condition)
    return OutputDataset(table.namespace, table.name, facets=_table_facets(table), outputFacets=facets)
