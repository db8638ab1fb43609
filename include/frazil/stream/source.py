"""The PySpark data source whose rows are offset ranges: one row, one task. Records never pass through it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from frazil.commit.marker import SourceIdentity
from frazil.ingest.contract import StageTask
from frazil.spec.model import StreamSpec
from frazil.spec.references import kafka_properties
from frazil.stream.kafka import KafkaOffsets
from frazil.stream.plan import assign, task_count
from frazil.stream.planner import Planner, PlannerSettings, Position, read_rates

FORMAT = "frazil"
SCHEMA = "plan string"


class RangeSource(DataSource):
    """Options: `spec` (the stream, references unresolved), `settings`, `source` and `position`, all JSON."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return RangeReader(dict(self.options))


class PlannedTask(InputPartition):
    """One task of a batch, and the position that the whole batch leads to."""

    def __init__(self, plan: str) -> None:
        super().__init__(plan)
        self.plan = plan


class RangeReader(DataSourceStreamReader):
    """Asks the planner. Spark makes one in the source's process, and an unused one in each reading worker."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._settings = PlannerSettings.from_json(options["settings"])
        self._initial = Position.from_json(json.loads(options["position"]))
        self._planner: Planner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._initial.to_json()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        self._planner = self._planner or self._start()
        return self._planner.next_position().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        begin, until = Position.from_json(start), Position.from_json(end)
        # A partition that appeared since begins where the planner found its first offset.
        began = self._planner.began if self._planner else {}
        starts = {tp: begin.offsets.get(tp, began.get(tp, end_offset)) for tp, end_offset in until.offsets.items()}
        records = sum(until.offsets[tp] - starts[tp] for tp in starts)
        rates, policy = read_rates(self._settings.run_folder), self._settings.policy
        tasks = assign(starts, until.offsets, tasks=task_count(records, rates=rates, policy=policy))
        # A tick has no ranges, and still needs a row to carry the position to the commit.
        return [_planned(task, until) for task in tasks or (StageTask(0, ()),)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        if isinstance(partition, PlannedTask):
            yield (partition.plan,)

    def _start(self) -> Planner:
        spec = StreamSpec.model_validate_json(self._options["spec"])
        source = json.loads(self._options["source"])
        return Planner(
            settings=self._settings,
            kafka=KafkaOffsets(kafka_properties(spec, os.environ), spec.source.topics),
            source=SourceIdentity(source["cluster_id"], source["topic_ids"]),
            position=self._initial,
        )


def _planned(task: StageTask, until: Position) -> PlannedTask:
    return PlannedTask(json.dumps({"task": task.to_json(), "position": until.to_json()}))
