"""The cost of a batch for many tables: `python -m bench.routes [TABLES] [--records N] [--mode M]`.

One stream has a route by a field, whose values spread records evenly over TABLES tables of its template. Each batch
goes through the writer's own parts in this process: stage (as one task), journal, and the commits to the default table
and to the routed tables. It uses the embedded catalog (SQLite, local files), without Kafka and Spark: records come from
memory. Prints CPU and wall seconds of each part, and of the same batch without a route. No maintenance runs. With
`--mode upsert` or `dedupe`, this process merges each batch into its tables; with `upsert`, later batches change the
first batch's rows.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from frazil.commit.committer import Committer
from frazil.commit.followers import Followers
from frazil.commit.journal import NO_DEAD_LETTERS, Journal
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.merging import merge_config
from frazil.commit.stream_tables import StreamTables
from frazil.ingest import readers
from frazil.ingest import stage as staging
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.contract import OffsetRange, StageResult, StageTask
from frazil.offsets.spans import SourceIdentity
from frazil.spec.model import StreamSpec
from frazil.stream.route import StreamRoute
from frazil.stream.routed_tables import create_missing_table
from frazil.stream.stage_context import build_stage_context
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_dead_letters, ensure_table

SOURCE = SourceIdentity("cluster", {"shop": "topic-id"})
CHUNK = 100_000


class Times:
    """CPU and wall seconds by part."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, float, float]] = []

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        cpu, wall = time.process_time(), time.monotonic()
        yield
        self.parts.append((part, time.process_time() - cpu, time.monotonic() - wall))

    def reported(self) -> str:
        total = sum(cpu for _, cpu, _ in self.parts)
        each = ", ".join(f"{part} {cpu:.2f} ({wall:.2f})" for part, cpu, wall in self.parts)
        return f"{total:6.2f} core-s: {each}"


MODES: Mapping[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"mode": "upsert", "key": ["kind", "id"], "order-by": "at"},
    "dedupe": {"dedupe": {"key": ["kind", "id"], "within": "1s"}},
}


def declared(limit: int, mode: str, *, routed: bool) -> StreamSpec:
    route = {"by": "field", "name": "kind", "template": "shop.of_{value}", "limit": limit}
    return StreamSpec.model_validate(
        {
            "name": "shop",
            "source": {"topics": ["shop"], "format": "json", "bootstrap-servers": "nowhere:9092"},
            "table": "shop.other" if routed else "shop.alone",
            "schema": {
                "id": "long not null",
                "kind": "string not null",
                "at": "timestamptz not null",
                "amount": "double",
                "note": "string",
            },
            "event-time": "at",
            "partition-by": ["day(at)"],
            **MODES[mode],
            **({"route": route} if routed else {}),
        }
    )


def chunks(records: int, tables: int, batch: int) -> list[RecordChunk]:
    """Return chunks of records of about 120 bytes. Each batch has other amounts, so that upserts change all rows."""
    found = []
    for start in range(0, records, CHUNK):
        count = min(CHUNK, records - start)
        values = [
            b'{"id":%d,"kind":"k%d","at":"2026-01-01T00:00:00Z","amount":%d.25,"note":"a note of some forty letters"}'
            % (n, n * 7919 % tables, (n + batch) % 1000)
            for n in range(start, start + count)
        ]
        stamps = np.full(count, 1_767_225_600_000, np.int64)
        nothing = BinaryColumn.nulls(count)
        offsets = np.arange(start, start + count, dtype=np.int64)
        found.append(RecordChunk(BinaryColumn.of(values), nothing, np.zeros(count, np.int32), offsets, stamps))
    return found


class Reader:
    notice = None

    def __init__(self, of: list[RecordChunk]) -> None:
        self._of = of

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[RecordChunk]:
        return iter(self._of)


class Bench:
    """One stream and its batches so far."""

    def __init__(self, spec: StreamSpec, *, records: int, tables: int) -> None:
        self.spec, self.count, self.kinds = spec, records, tables
        catalog = load_catalog(None)
        targets = {"main": ensure_table(catalog, spec), "dead-letters": ensure_dead_letters(catalog, spec)}
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000  # noqa: E731
        self.tables = StreamTables.open(spec.name, targets, clock_ms=clock_ms, merging=merge_config(spec))
        self.committer = Committer.take_over(
            self.tables,
            source=SOURCE,
            initial=lambda: {("shop", 0): 0},
            load_followers=partial(Followers.load, self.tables, make=partial(create_missing_table, spec, self.tables)),
        )
        self.marker = self._marker()
        self.route = StreamRoute.begin(spec, self.tables, self.marker, self.committer.followers, lambda _: None)

    def _marker(self) -> Marker:
        found = self.tables.marker()
        assert found is not None
        return found

    def reopen(self, times: Times) -> None:
        """Open the tables again, as another process would."""
        with times.of("open"):
            fresh = Bench(self.spec, records=self.count, tables=self.kinds)
        routed, before = fresh.route.routed, self.route.routed
        assert routed is None or (before is not None and len(routed.targets) == len(before.targets))
        self.__dict__ = fresh.__dict__

    def batch(self, times: Times) -> int:
        """Write and commit one batch. Return the journal's size in bytes."""
        key = BatchKey(self.committer.epoch, self.marker.key.batch + 1)
        start = self.marker.offsets["shop", 0]
        task = StageTask(0, (OffsetRange("shop", 0, start, start + self.count),))
        result = self._stage(times, key, task)
        if result.values:
            with times.of(f"make {len(result.values)} tables"):
                self.route.create_tables(result.values, self.marker)
            result = self._stage(times, key, task)
        ends = {("shop", 0): start + self.count}
        uuid = str(self.tables.main.current().metadata.table_uuid)
        journal = Journal(
            "shop",
            key,
            uuid,
            self.tables.clock_ms(),
            SOURCE,
            result.progress,
            result.files,
            NO_DEAD_LETTERS,
            frozenset(),
            ends,
        )
        with times.of("journal"):
            assert self.tables.journals.put(journal)
        with times.of("home"):
            self.marker = self.committer.commit(journal)
        with times.of("follow"):
            self.route.commit_batch()
        assert not self.route.behind, self.route.followers.behind
        return len(journal.to_bytes())

    def _stage(self, times: Times, key: BatchKey, task: StageTask) -> StageResult:
        with times.of("context"):
            context = build_stage_context(self.spec, self.tables, key, kafka_properties={}, topic_ids=SOURCE.topic_ids)
            context = self.route.add_targets(context, key, self.marker)
        records = chunks(self.count, self.kinds, key.batch)
        reader: Callable[..., Any] = lambda *_, **__: Reader(records)  # noqa: E731 - what is patched in
        with times.of("stage"), mock.patch.object(readers, "create_kafka_reader", reader):
            return staging.stage(context, task, attempt=0, on_progress=lambda *_: None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", type=int, nargs="?", default=2_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--mode", choices=[*MODES], default="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("FRAZIL_BENCH_FOLDER")) as folder:
        os.environ["FRAZIL_HOME"] = folder
        Path(folder, "warehouse").mkdir()
        for routed in (False, True):
            print(f"{options.records:,} records, {f'{options.tables:,} tables' if routed else 'one table'}", flush=True)
            spec = declared(max(options.tables, 1), options.mode, routed=routed)
            bench = Bench(spec, records=options.records, tables=options.tables)
            for number in range(options.batches):
                times = Times()
                journal = bench.batch(times)
                print(f"batch {number + 1}: {times.reported()}; journal {journal / 1e6:.2f} MB", flush=True)
            times = Times()
            bench.reopen(times)
            print(f"restart: {times.reported()}", flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
