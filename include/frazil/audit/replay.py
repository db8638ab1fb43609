"""Stages committed records of Kafka again, in a separate folder, to compare them with the tables."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from pyiceberg.io import load_file_io
from pyiceberg.table import Table

from frazil.audit.sinks import Sinks
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.stream_tables import StreamTables
from frazil.home import make_folder, run_folder
from frazil.ingest.contract import OffsetRange, StageContext, StageResult, StageTask, Target
from frazil.ingest.stage import stage
from frazil.offsets.spans import Span, TopicPartition
from frazil.offsets.tally import Tallies
from frazil.spec.model import StreamSpec
from frazil.spec.references import executors_kafka_properties
from frazil.stream.stage_context import stage_context
from frazil.table.landed_offsets import RowSelection, tally_files, tally_rows


@contextmanager
def scratch_folder(stream: str) -> Iterator[Path]:
    """Make a folder in the stream's run folder, and remove it afterwards."""
    folder = run_folder(stream)
    make_folder(folder)
    with TemporaryDirectory(dir=folder, prefix="audit-") as name:
        yield Path(name)


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """The records to read again, and the tables to compare them with."""

    spec: StreamSpec
    tables: StreamTables
    sinks: Sinks
    topic_ids: Mapping[str, str]
    spans: Mapping[TopicPartition, Sequence[Span]]
    not_read: Sequence[str] = ()
    """Topics of the stream that cannot be read again."""

    @property
    def topics(self) -> set[str]:
        return {topic for (topic, _), of in self.spans.items() if of}

    def staged(self, folder: Path) -> tuple[list[StageResult], StageContext]:
        """Stage the records in subfolders of `folder`. A task reads one span of each topic-partition."""
        kafka = executors_kafka_properties(self.spec, os.environ)
        found = stage_context(self.spec, self.tables, BatchKey(0, 0), kafka_properties=kafka, topic_ids=self.topic_ids)
        found = self.sinks.placed(self.spec, found)
        targets = {target: dataclasses.replace(of, folder=str(folder / target)) for target, of in found.targets.items()}
        context = dataclasses.replace(found, targets=targets, existing_dead_letters=self._held())
        rounds = zip_longest(*([OffsetRange(*tp, *span) for span in of] for tp, of in self.spans.items()))
        tasks = [StageTask(index, tuple(filter(None, ranges))) for index, ranges in enumerate(rounds)]
        return [stage(context, task, attempt=0, on_progress=lambda _: None) for task in tasks], context

    def _held(self) -> dict[TopicPartition, bytes]:
        """Return the offsets of dead letters, which stay dead letters even if the current declaration accepts their
        records.
        """
        wanted = RowSelection(self.topics, None, self.topic_ids, self.spec.name)
        dead_letters = tally_rows(self.tables.dead_letters.refresh(), wanted)
        return {tp: of.seen.serialize() for tp, of in dead_letters.items() if of.seen}


def records_by_table(
    spec: StreamSpec, tables: StreamTables, table: Table, marker: Marker, spans: Mapping[TopicPartition, Span]
) -> Mapping[Target, Tallies]:
    """Return the offsets of Kafka's records by the table that the route, as declared now, has for them.

    `table` is the default table, whose target is "main". Raises KafkaUnavailable.
    """
    sinks = Sinks.of(spec, tables, table, marker)
    replay = Replay(spec, tables, sinks, marker.source.topic_ids, {tp: [span] for tp, span in spans.items()})
    paths = defaultdict[Target, list[str]](list)
    with scratch_folder(spec.name) as folder:
        for result in replay.staged(folder)[0]:
            for file in result.files:
                paths[file.target].append(file.path)
        io = load_file_io({}, location=str(folder))
        return {target: tally_files(io, of) for target, of in paths.items() if target != "dead-letters"}
