"""The cost of a writer's start with years of commit records, folded and not: `python -m bench.start [RECORDS…]`.

One stream reads a topic with 32 partitions, and writes two files of 20 columns per commit to the embedded catalog
(SQLite, local files). A start consists of taking over the stream and settling unfinished batches, without Kafka and
Spark. The records are first as an earlier version left them, then folded.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

from frazil.commit.committer import Committer
from frazil.commit.journal import Journal, bare_path
from frazil.commit.marker import BatchKey
from frazil.commit.marker_changes import change_marker
from frazil.commit.settle import highest_epoch, settle
from frazil.ingest.contract import RangeProgress, StagedFile
from frazil.spec.load import find_stream
from tests.made_batches import MadeStream

SIZES = (2_000, 50_000, 500_000)
PARTITIONS = 32
COLUMNS = range(1, 21)
BOUND = "AAAAAAAAAAA="
NOW_MS = 1_800_000_000_000


def record(stream: MadeStream, number: int) -> Journal:
    metadata = stream.tables.main.current().metadata
    file = StagedFile(
        target="main",
        path=f"{metadata.location}/data/flights/00000001/{number:08d}/0-0-6f1ed002ab5595859014ebf0951522d9.parquet",
        records=100_000,
        bytes=2_000_000 + number,
        schema_id=0,
        spec_id=0,
        sort_order_id=None,
        partition=("FEAAAA==",),
        column_sizes=dict.fromkeys(COLUMNS, 100_000 + number),
        value_counts=dict.fromkeys(COLUMNS, 100_000),
        null_value_counts=dict.fromkeys(COLUMNS, 0),
        nan_value_counts={},
        lower_bounds=dict.fromkeys(COLUMNS, BOUND),
        upper_bounds=dict.fromkeys(COLUMNS, BOUND),
        split_offsets=(4,),
    )
    places = range(PARTITIONS)
    return Journal(
        stream=stream.spec.name,
        key=BatchKey(1, number),
        table_uuid=str(metadata.table_uuid),
        created_at_ms=NOW_MS + 60_000 * number,
        source=stream.source,
        progress=tuple(RangeProgress(stream.topic, p, number - 1, number, 1, 0, NOW_MS * 1_000) for p in places),
        files=(file, file),
        newest_dead_letters=None,
        idle=frozenset(),
        offsets_after={(stream.topic, p): number for p in places},
        windows={NOW_MS * 1_000: 100_000},
    )


def make(records: int) -> tuple[MadeStream, int]:
    """Create the stream. Return it and the size of one commit record."""
    spec = find_stream(Path(__file__).parent.parent / "include" / "streams", "flights")
    stream = MadeStream(spec, NOW_MS, partitions=PARTITIONS)
    stream.begin()
    folder = Path(bare_path(stream.tables.journals.path(BatchKey(1, 1)))).parent
    folder.mkdir(parents=True, exist_ok=True)
    # One text for all; only the key differs, with a fixed width.
    text = record(stream, records).to_bytes()
    for number in range(1, records + 1):
        path = bare_path(stream.tables.journals.path(BatchKey(1, number)))
        Path(path).write_bytes(text.replace(b'"batch":%d,' % records, b'"batch":%d,' % number, 1))
    marker = stream.tables.marker()
    if marker is None:
        raise RuntimeError("the stream did not begin")
    last = BatchKey(1, records)
    moved = dataclasses.replace(
        marker, key=last, settled=last, batches={1: records}, offsets=record(stream, records).offsets_after
    )
    change_marker(stream.tables, stream.tables.main, lambda _: moved, operation="reset")
    return stream, len(text)


def start(stream: MadeStream) -> tuple[float, float]:
    """Start the writer's parts once, and return wall and CPU seconds."""
    wall, cpu = time.monotonic(), time.process_time()
    committer = Committer.take_over(
        stream.tables,
        source=stream.source,
        initial=dict,
        first_epoch=1 + highest_epoch(stream.tables),
    )
    settle(stream.tables, committer)
    return time.monotonic() - wall, time.process_time() - cpu


def main() -> None:
    print(f"{'records':>9}  {'bytes each':>10}  {'alone: start s (CPU)':>21}  {'fold s (CPU)':>16}  "
          f"{'folded: start s (CPU)':>21}  {'objects':>7}  {'MB':>7}", flush=True)  # fmt: skip
    for records in [int(a) for a in sys.argv[1:]] or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FRAZIL_HOME"] = folder
            stream, size = make(records)
            alone = start(stream)
            marker = stream.tables.marker()
            if marker is None:
                raise RuntimeError("the stream is gone")
            wall, cpu = time.monotonic(), time.process_time()
            for _ in stream.tables.journals.fold(marker):
                pass
            folded = time.monotonic() - wall, time.process_time() - cpu
            after = start(stream)
            left = stream.tables.store.list_files(stream.tables.state)
            megabytes = sum(f.bytes for f in left) / 1e6
            print(
                f"{records:>9,}  {size:>10,}  {alone[0]:>12.2f} ({alone[1]:.2f})  {folded[0]:>9.1f} ({folded[1]:.1f})  "
                f"{after[0]:>12.2f} ({after[1]:.2f})  {len(left):>7,}  {megabytes:>7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
