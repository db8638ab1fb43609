"""The cost of measuring a table's health as the table grows: `python -m bench.health [FILES…]`.

The tables have 1,000, 10,000 and 100,000 files in the embedded catalog (SQLite, local files), 500 days, and 20 columns
with statistics. A stream added the last 384 files in 12 commits, whose records are read. Each manifest lists 1,000
files, as after a rewrite of manifests. CPU is user and system time of the whole process. The data files do not exist,
because no measurement opens them.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyiceberg.conversions import to_bytes
from pyiceberg.types import DateType

from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey
from frazil.commit.snapshot import SnapshotWriter
from frazil.ingest.contract import RangeProgress, StagedFile
from frazil.maintenance.health import TableHealth
from frazil.maintenance.measure import measure
from frazil.maintenance.tables import find_maintained
from frazil.spec.load import find_stream
from frazil.table.catalogs import load_catalog
from tests.made_batches import MadeStream

SIZES = (1_000, 10_000, 100_000)
PER_MANIFEST = 1_000
COMMITS, PER_COMMIT = 12, 32
COLUMNS = range(1, 21)
BEGIN_MS = time.time_ns() // 1_000_000 + 60_000


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def staged(stream: MadeStream, number: int) -> StagedFile:
    metadata = stream.tables.main.current().metadata
    return StagedFile(
        target="main",
        path=f"{metadata.location}/data/flights/00000001/{number:08d}/0-0-6f1ed002ab5595859014ebf0951522d9.parquet",
        records=1_000,
        bytes=100_000 + number,
        schema_id=metadata.current_schema_id,
        spec_id=metadata.default_spec_id,
        sort_order_id=None,
        partition=(encoded(to_bytes(DateType(), 16_000 + number % 500)),),
        column_sizes=dict.fromkeys(COLUMNS, 5_000 + number),
        value_counts=dict.fromkeys(COLUMNS, 1_000),
        null_value_counts=dict.fromkeys(COLUMNS, 0),
        nan_value_counts={},
        lower_bounds=dict.fromkeys(COLUMNS, encoded(number.to_bytes(8, "little"))),
        upper_bounds=dict.fromkeys(COLUMNS, encoded((number + 7).to_bytes(8, "little"))),
        split_offsets=(4,),
    )


def append(stream: MadeStream, files: list[StagedFile]) -> None:
    table = stream.tables.main.refresh()
    prepared = SnapshotWriter(files).prepare(table, summary={}, now_ms=stream.now_ms)
    table.catalog.commit_table(table, prepared.requirements, prepared.updates)


def commit(stream: MadeStream, number: int, files: list[StagedFile]) -> None:
    """Commit the stream's next batch, whose data files do not exist."""
    committer = stream.committer or stream.begin()
    progress = (RangeProgress(stream.topic, 0, number, number + 1, 1, 0, None),)
    journal = Journal(
        stream=stream.spec.name,
        key=BatchKey(committer.epoch, number + 1),
        table_uuid=str(stream.tables.main.current().metadata.table_uuid),
        created_at_ms=stream.now_ms,
        source=stream.source,
        progress=progress,
        files=(),
        newest_dead_letters=None,
        idle=frozenset(),
        offsets_after={(stream.topic, 0): number + 1},
    )
    stream.tables.journals.put(journal)  # it would make the files durable, were there any
    whole = dataclasses.replace(journal, files=tuple(files))
    stream.tables.store.put(stream.tables.journals.path(journal.key), whole.to_bytes())
    committer.commit(whole)


def make(files: int) -> MadeStream:
    spec = find_stream(Path(__file__).parent.parent / "include" / "streams", "flights")
    stream = MadeStream(spec, BEGIN_MS, partitions=1)
    stream.begin()
    early = files - COMMITS * PER_COMMIT
    for start in range(0, early, PER_MANIFEST):
        append(stream, [staged(stream, n) for n in range(start, min(start + PER_MANIFEST, early))])
    for number in range(COMMITS):
        stream.now_ms += 60_000
        first = early + number * PER_COMMIT
        commit(stream, number, [staged(stream, n) for n in range(first, first + PER_COMMIT)])
    return stream


def timed(stream: MadeStream, *, deep: bool) -> tuple[float, TableHealth]:
    cpu = time.process_time()
    maintained = find_maintained([stream.spec], stream.spec.table.identifier)
    found = measure(load_catalog(None), maintained, now_ms=stream.now_ms, deep=deep)
    if found is None:
        raise RuntimeError("the table is gone")
    return time.process_time() - cpu, found


def main() -> None:
    print(f"{'files':>8}  {'manifests':>9}  {'partitions':>10}  {'shallow CPU s':>13}  {'deep CPU s':>10}", flush=True)
    for files in [int(a) for a in sys.argv[1:]] or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FRAZIL_HOME"] = folder
            stream = make(files)
            shallow = statistics.median(timed(stream, deep=False)[0] for _ in range(5))
            deep, found = timed(stream, deep=True)
            counted = len(found.partitions or ())
            print(
                f"{found.data_files:>8,}  {found.manifests:>9}  {counted:>10}  {shallow:>13.3f}  {deep:>10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
