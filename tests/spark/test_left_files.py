"""Files that a batch leaves on Spark's disks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import RDD

from frazil.ingest.contract import StageResult
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.stream.session import writer_properties
from frazil.stream.spark_engine import SparkEngine

RESULT = StageResult((), (), None, ()).to_json()


def flights() -> StreamSpec:
    return find_stream(Path(__file__).parents[2] / "include" / "streams", "flights")


def test_a_shuffled_batch_leaves_no_rows_behind(
    spark: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    result, kept, shuffling = RESULT, [], RDD.partitionBy

    def keep(*arguments: Any) -> Any:
        """Spark also removes what no variable refers to, whenever its JVM collects garbage."""
        kept.append(shuffling(*arguments))
        return kept[-1]

    monkeypatch.setattr(RDD, "partitionBy", keep)

    class Work:  # local, so that it is pickled whole
        context = SimpleNamespace(stream="s", epoch=1, batch=1, shuffle=SimpleNamespace(writers=2))

        def read(self, plans: Iterable[str]) -> Iterator[tuple[int, Any]]:
            for plan in plans:
                task = int(plan)
                yield 1 - task, (task, 1, b"row")
                sent = [task, 1 - task]
                answer = {"read": task, "result": result, "sent": sent, "partitions": 1, "task_s": 0}
                yield 0, json.dumps(answer)

        def write(self, writer: int, sent: Iterable[tuple[int, Any]]) -> Iterator[str]:
            found = [what for _, what in sent]
            yield from (what for what in found if isinstance(what, str))
            received = {what[0]: what[1] for what in found if not isinstance(what, str)}
            yield json.dumps({"write": writer, "files": [], "received": received, "task_s": 0})

    def shuffled() -> set[str]:
        files = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().getAllFiles()
        return {path for path in files.mkString(" ").split() if "/shuffle_" in path}

    before = shuffled()
    answers = SparkEngine(flights(), spark).run(["0", "1"], Work())  # type: ignore[arg-type]
    assert (len(answers), len(kept)) == (2, 1)
    eventually(lambda: shuffled() <= before)


def test_a_batch_with_large_shared_task_data_leaves_no_files_behind(spark: Any, request: pytest.FixtureRequest):
    name, result, large = "spark.broadcast.UDFCompressionThreshold", RESULT, os.urandom(2 << 20)
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set(name, writer_properties(flights())[name])
    request.addfinalizer(lambda: conf.remove(name))

    class Work:
        context = SimpleNamespace(stream="s", epoch=1, batch=1, shuffle=None)

        def __call__(self, plans: Iterable[str]) -> Iterator[str]:
            yield from (json.dumps({"result": result, "task_s": len(large)}) for _ in plans)

    before = set(Path(spark.sparkContext._temp_dir).rglob("*"))
    answers = SparkEngine(flights(), spark).run(["0", "1"], Work())  # type: ignore[arg-type]
    assert [answer.seconds for answer in answers] == [2 << 20] * 2
    assert set(Path(spark.sparkContext._temp_dir).rglob("*")) == before
