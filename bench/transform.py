"""CPU of a transform: ticks that are filtered, renamed and cast twice, compared with unchanged ticks.

    .venv/bin/python -m bench.transform [--records 100000] [--repeats 9]

Records of 130 bytes are decoded, converted to rows and written to Parquet files, as a writer's tasks do in chunks of
50,000. `plain` declares the fields as columns. `transform` has the same fields, and a SELECT that drops one record of
50, renames two fields and casts two from text. `1 % fail` is `transform` with one record of 100 whose text cannot be
cast: it becomes a dead letter. Prints the minimum CPU (user and system) of all rounds, in core-seconds per million
records.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pyiceberg.table.sorting import SortOrder

from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.contract import OffsetRange, StageContext, StageTask, TargetTable
from frazil.ingest.range_reader import MAX_CHUNK_RECORDS
from frazil.ingest.stage import _Stage
from frazil.ingest.transform_check import check_transform
from frazil.spec import iceberg
from frazil.spec.load import validate_stream

FIELDS = {"symbol": "string", "ts": "timestamptz", "price": "string", "size": "string", "venue": "string"}
COLUMNS = {"ticker": "string", "ts": "timestamptz", "price": "double", "quantity": "int", "venue": "string"}
SQL = (
    "SELECT symbol AS ticker, ts, CAST(price AS DOUBLE) AS price, CAST(size AS INTEGER) AS quantity, venue "
    "FROM records WHERE venue <> 'TEST'"
)


def value(number: int, *, bad: bool) -> bytes:
    price = "n/a" if bad and number % 100 == 7 else f"{number * 104_729 % 5_000_000 / 10_000:.4f}"
    return (
        f'{{"symbol":"S{number * 7919 % 2000:04}","ts":"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}.123Z",'
        f'"price":"{price}","size":"{1 + number * 31 % 999}","venue":"{"TEST" if number % 50 == 3 else "XNAS"}",'
        f'"trade_id":{number}}}'
    ).encode()


def context_of(folder: str, *, transform: bool) -> StageContext:
    declared: dict[str, Any] = {
        "name": "s",
        "source": {"topics": ["t"], "bootstrap-servers": "broker:9092"},
        "table": "a.b",
        "schema": COLUMNS if transform else FIELDS,
        "event-time": "ts",
        "complete": "none",
    }
    if transform:
        declared |= {"transform": SQL, "source": {**declared["source"], "schema": FIELDS}}
    spec = validate_stream(declared, Path("s.yaml"))
    schema = iceberg.table_schema(spec)
    order = iceberg.sort_order(spec, schema).model_dump_json()

    def target(name: str, of: Any, partitioning: Any, order: str) -> TargetTable:
        return TargetTable(of.model_dump_json(), partitioning.model_dump_json(), order, {}, f"{folder}/{name}", 2**27)

    letters = (iceberg.DEAD_LETTER_SCHEMA, iceberg.DEAD_LETTER_PARTITION_SPEC, SortOrder(order_id=0).model_dump_json())
    targets = {
        "main": target("main", schema, iceberg.partition_spec(spec, schema), order),
        "dead-letters": target("dead", *letters),
    }
    context = StageContext("s", 1, 1, {}, "json", "ts", True, targets, {"t": "id"})
    return replace(context, transform=check_transform(spec).transform) if transform else context


def chunks_of(values: list[bytes]) -> list[RecordChunk]:
    whole = RecordChunk.of_column(BinaryColumn.of(values))
    whole = replace(whole, timestamps_ms=np.full(len(values), 1_767_225_600_000))
    return [whole.slice(at, at + MAX_CHUNK_RECORDS) for at in range(0, len(values), MAX_CHUNK_RECORDS)]


def cpu_s(context: StageContext, chunks: list[RecordChunk]) -> float:
    records = sum(map(len, chunks))
    run = _Stage(context, StageTask(0, (OffsetRange("t", 0, 0, records),)), attempt=0, now_us=lambda: 0)
    started = time.process_time()
    for chunk in chunks:
        run.take(chunk, with_trial=False)
    (progress,) = run.finish(notices=()).progress
    took = time.process_time() - started
    assert progress.records + progress.rejected + progress.dropped == records
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    numbers = range(arguments.records)
    clean, bad = (chunks_of([value(n, bad=is_bad) for n in numbers]) for is_bad in (False, True))
    with tempfile.TemporaryDirectory() as folder:
        plain, transform = (context_of(folder, transform=is_on) for is_on in (False, True))
        runs = {"plain": (plain, clean), "transform": (transform, clean), "1 % fail": (transform, bad)}
        gc.disable()
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(arguments.repeats + 1):  # the first one compiles
            for name, run in runs.items():
                best[name] = min(best[name], cpu_s(*run))
    for name, cpu in best.items():
        print(f"{name}: {cpu / arguments.records * 1e6:.3f}", flush=True)
    extra = (best["transform"] - best["plain"]) / arguments.records * 1e6
    print(f"transform adds {extra:.3f}; failing records cost {best['1 % fail'] / best['transform']:.2f} times")


if __name__ == "__main__":
    main()
