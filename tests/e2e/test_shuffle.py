"""A shuffled batch is complete even if a worker dies. A writer begins to shuffle once that saves files."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform

from frazil.dev.kafka import EmbeddedKafka
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat
from frazil.ingest.contract import OffsetRange, Shuffle, StageContext, StageResult, StageTask, TargetTable
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec
from frazil.stream.progress import ProgressFolder
from frazil.stream.spark_engine import SparkEngine
from frazil.stream.stage_rows import ShuffleItem, StageRows

PARTITIONS, WRITERS, RECORDS = 3, 3, 3000
SPEC = StreamSpec.model_validate(
    {
        "name": "shuffled",
        "source": {"bootstrap-servers": "x:1", "topics": "t"},
        "table": "a.b",
        "schema": {
            "ts": "timestamptz not null",
            "region": "string",
            "id": "uuid",
            "fare": "decimal(9, 2)",
            "local": "timestamp",
            "tags": "list<string>",
        },
        "event-time": "ts",
    }
)
SCHEMA = iceberg.table_schema(SPEC)
REGION = SCHEMA.find_field("region").field_id
BY_REGION = PartitionSpec(PartitionField(REGION, 1000, IdentityTransform(), "region"))


def record(number: int) -> bytes:
    if number % 50 == 0:
        return b"no JSON"
    return json.dumps(
        {
            "ts": f"2026-01-01T00:00:00.{number:06}Z",
            "region": "hot" if number % 2 else f"r{number % 40}",
            "id": f"00000000-0000-0000-0000-{number:012}",
            "fare": number / 4,
            "local": "2026-01-01T00:00:00",
            "tags": [str(number), None],
        }
    ).encode()


def context(kafka: EmbeddedKafka, folder: Path) -> StageContext:
    def target(name: str, schema: Any, spec: PartitionSpec) -> TargetTable:
        forms = (schema.model_dump_json(), spec.model_dump_json(), UNSORTED_SORT_ORDER.model_dump_json())
        return TargetTable(*forms, {}, str(folder / name), 2**27)

    return StageContext(
        stream="shuffled",
        epoch=1,
        batch=1,
        kafka={"bootstrap.servers": kafka.bootstrap},
        format="json",
        event_time_column="ts",
        coordinates=True,
        targets={
            "main": target("main", SCHEMA, BY_REGION),
            "dead-letters": target("dead", iceberg.DEAD_LETTER_SCHEMA, iceberg.DEAD_LETTER_PARTITION_SPEC),
        },
        topic_ids={},
        shuffle=Shuffle(WRITERS, {("aG90",): ((0, 0.5), (1, 1.0))}),  # "hot"
    )


def dying(work: StageRows, note: Path) -> Any:
    """The same, but one writer's process dies in the middle, once."""

    class Dying:  # of a function, so that it is pickled by value
        context = work.context
        read = work.read

        def write(self, writer: int, sent: Iterable[ShuffleItem]) -> Iterator[str]:
            def until_death() -> Iterator[ShuffleItem]:
                for item in sent:
                    yield item
                    if writer == 1 and not note.exists():
                        note.touch()
                        os.kill(os.getpid(), signal.SIGKILL)

            return work.write(writer, until_death())

    return Dying()


def test_a_batch_is_whole_when_a_writers_process_dies(
    kafka: EmbeddedKafka, topic: Callable[..., str], spark: Any, tmp_path: Path
) -> None:
    name = topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(RECORDS):
        producer.produce(name, record(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    tasks = [StageTask(p, (OffsetRange(name, p, 0, RECORDS // PARTITIONS),)) for p in range(PARTITIONS)]
    plans = [json.dumps(task.to_json()) for task in tasks]
    note = tmp_path / "died"
    work = StageRows(context(kafka, tmp_path), ProgressFolder(str(tmp_path / "progress"), {}))
    with SparkEngine(SPEC, spark) as engine:
        answers = engine.run(plans, dying(work, note))
    assert note.exists()
    results = [answer.result for answer in answers]
    assert [sum(p.records for p in r.progress) for r in results] == [RECORDS // PARTITIONS * 49 // 50] * PARTITIONS
    main, dead = landed(results, "main"), landed(results, "dead-letters")
    assert len(dead) == RECORDS // 50
    expected = [json.loads(record(n)) for n in range(RECORDS) if n % 50]
    assert sorted(str(row["id"]) for row in main) == sorted(r["id"] for r in expected)
    assert {str(row["id"]): row["tags"] for row in main} == {r["id"]: r["tags"] for r in expected}
    files = Counter(file.partition for r in results for file in r.files if file.target == "main")
    assert files.pop(("aG90",)) == 2
    assert set(files.values()) == {1}


def landed(results: Iterable[StageResult], target: str) -> list[dict[str, Any]]:
    files = [file for result in results for file in result.files if file.target == target]
    return [row for file in files for row in pq.read_table(file.path).to_pylist()]


def test_a_live_writer_begins_to_shuffle_once_that_saves_files(
    stream: Any, events: Callable[[Iterable[int]], Iterator[bytes]], eventually: Any
) -> None:
    each, batches = 2000, 20
    stream.declare("commit: {interval: 1s}\nresources: {cores: 4}\ndistribution: auto\n")
    declared = stream.streams / f"{stream.name}.yaml"
    # Small target files make several tasks of a small batch, and 40 buckets as many files of each task.
    table = f"{{identifier: test.{stream.name}, properties: {{write.target-file-size-bytes: 32000}}}}"
    text = declared.read_text().replace(f"table: test.{stream.name}", f"table: {table}")
    declared.write_text(text.replace("[day(at)]", "[bucket(40, id)]"))

    def chosen() -> str:
        heartbeat = Heartbeat.read(run_folder(stream.name))
        return str(heartbeat and heartbeat.distribution)

    def produced(batch: int) -> int:
        stream.produce(events(range(batch * each, (batch + 1) * each)), partitions=4)
        return (batch + 1) * each

    rows = produced(0)
    with stream.writing():
        for batch in range(1, batches):
            eventually(lambda rows=rows: stream.has_rows(rows))
            if chosen().startswith("shuffled: 40 live partitions: about "):
                break
            rows = produced(batch)
        else:
            pytest.fail(f"no batch was shuffled; of the last one the writer says: {chosen()}")
    added = [
        int(s.summary["added-data-files"] or 0)
        for s in stream.table().snapshots()
        if s.summary and s.summary.get("added-data-files")
    ]
    assert added[0] >= 2 * 40, "each task wrote a file for each bucket"
    assert added[-1] < 1.5 * 40
    assert stream.ids() == list(range(rows))
