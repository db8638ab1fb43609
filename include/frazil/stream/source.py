"""The PySpark data source whose rows are offset ranges, one row for each task. Records never pass through it.

Spark imports this module in five Python processes in turn before the first batch. Only the one that plans needs more
than JSON, so it imports the rest when it plans.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from frazil.errors import FrazilError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from frazil.stream.planner import BatchPlanner

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
        return PlanReader(dict(self.options))


class PlannedTask(InputPartition):
    """One task of a batch, with the position at which the whole batch ends."""

    def __init__(self, plan: str) -> None:
        super().__init__(plan)
        self.plan = plan


class PlanReader(DataSourceStreamReader):
    """Asks the planner. Spark creates one in the source's process, and an unused one in each reading worker."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._planner: BatchPlanner | None = None
        self._ended = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return dict(json.loads(self._options["position"]))

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        planner = self._at_work()
        if not self._ended:
            try:
                return planner.next_position().to_json()
            except FrazilError:
                # The driver finds it in the planner's report; raised here, Spark would print a page of Java stack
                # trace. The planner is not asked again: a later poll might no longer find the error.
                self._ended = True
        return planner.position.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # Spark's own first batch, when nothing is unread: the only one without a row.
        if start == end:
            return []
        # A tick has no ranges, but needs a row that carries the position to the commit.
        tasks = self._at_work().tasks(start, end) or ({"index": 0, "ranges": ()},)
        return [PlannedTask(json.dumps({"task": task, "position": end})) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        if isinstance(partition, PlannedTask):
            yield (partition.plan,)

    def _at_work(self) -> BatchPlanner:
        self._planner = self._planner or _start_planner(self._options)
        return self._planner


def _start_planner(options: dict[str, str]) -> BatchPlanner:
    from frazil.stream.planner import start_planner  # noqa: PLC0415 - see the module

    return start_planner(options, os.environ)
