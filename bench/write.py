"""The cost of a file's encodings, compression level, pages and row groups, for writer and readers.

`python -m bench.write` writes ticks and wide records as a task of `stage` would: decoded, with their Kafka coordinates,
in runs of one Kafka partition. Each variant writes all of them into one Parquet file, which DuckDB and pyarrow then
read on one thread. Prints CPU (user and system) in core-seconds per million rows, the minimum of the repeats, and the
file's bytes per row.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.decode import decoder_of
from bench.peer.records import KINDS, PARTITIONS, Records
from bench.peer.systems import Job, declared
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.contract import OffsetRange
from frazil.ingest.coordinates import COORDINATE_COLUMNS, CoordinateColumns
from frazil.ingest.parquet import choose_encodings
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec

RUN_RECORDS = 700
"""Average number of successive records of one Kafka partition."""
CHUNK_RECORDS = 50_000
BEGIN_MS = 1_767_225_600_000
DEFAULTS = {
    "compression": "zstd",
    "data_page_size": 2**20,
    "max_rows_per_page": 20_000,
    "dictionary_pagesize_limit": 2 * 2**20,
    "store_schema": False,
}
"""The settings of a table without properties, as `frazil.ingest.parquet` writes it."""
CHOICES: dict[str, dict[str, Any]] = {
    "dictionaries for every column": {"encodings": None},
    "v1: as chosen": {"encodings": "v1"},
    "**v2: as chosen**": {},
    "v2, without Kafka coordinates": {"without": COORDINATE_COLUMNS},
    "v2, zstd level 3": {"compression_level": 3},
    "v2, zstd level 6": {"compression_level": 6},
    "v2, snappy": {"compression": "snappy"},
    "v2, lz4": {"compression": "lz4"},
    "v2, pages of 5,000 rows": {"max_rows_per_page": 5_000},
    "v2, pages of 256 KiB": {"data_page_size": 2**18},
    "v2, row groups of 262,144 rows": {"row_group_rows": 262_144},
    "v2, row groups of 65,536 rows": {"row_group_rows": 65_536},
    "v2, rows sorted by Kafka partition": {"sorted_by": "kafka_partition"},
}


def rows_of(records: Records, count: int) -> pa.Table:
    """Return `count` records as rows of the table that frazil creates for them."""
    nowhere = Path()
    spec = StreamSpec.model_validate(
        declared(Job(records, "broker:9092", None, nowhere, nowhere, nowhere, records.name))
    )
    each = count // PARTITIONS
    ranges = [OffsetRange(records.name, p, 0, each) for p in range(PARTITIONS)]
    decode, coordinates = decoder_of(records), CoordinateColumns(iceberg.table_schema(spec), ranges, wanted=True)
    arrived = np.concatenate([np.stack([np.full(n, p), np.arange(o, o + n)]) for p, o, n in _runs(each)], axis=1)
    tables = []
    for first in range(0, arrived.shape[1], CHUNK_RECORDS):
        partitions, offsets = arrived[:, first : first + CHUNK_RECORDS]
        numbers = offsets * PARTITIONS + partitions
        chunk = RecordChunk(
            BinaryColumn.of([records.value(n) for n in numbers.tolist()]),
            BinaryColumn.nulls(len(numbers)),
            partitions.astype(np.int32),
            offsets,
            BEGIN_MS + numbers // 200,
        )
        decoded = decode(chunk)
        tables.append(coordinates.add_to(decoded.rows, chunk, decoded.record_indexes))
    return pa.concat_tables(tables)


def _runs(each: int) -> Iterator[tuple[int, int, int]]:
    """Yield partition, first offset and length of each run of records, in order of arrival."""
    random = np.random.default_rng(1)
    read = dict.fromkeys(range(PARTITIONS), 0)
    while read:
        for partition in random.permutation([*read]).tolist():
            first = read[partition]
            length = min(each - first, int(random.integers(RUN_RECORDS // 2, RUN_RECORDS * 3 // 2)))
            yield partition, first, length
            read[partition] += length
            if read[partition] == each:
                del read[partition]


def write(path: Path, rows: pa.Table, choice: dict[str, Any]) -> None:
    options = {**DEFAULTS, **choice}
    version, group = options.pop("encodings", "v2"), options.pop("row_group_rows", 1_048_576)
    rows = rows.drop_columns([*options.pop("without", ())])
    if (column := options.pop("sorted_by", None)) is not None:
        rows = rows.take(np.argsort(rows[column].to_numpy(), kind="stable"))
    if version is not None:
        chosen = choose_encodings(rows, allows_v2=version == "v2")
        options |= {"use_dictionary": chosen.use_dictionary, "column_encoding": chosen.column_encoding or None}
    with pq.ParquetWriter(path, rows.schema, **options) as writer:
        writer.write_table(rows, row_group_size=group)


def best_of(repeats: int, work: Callable[[], object]) -> float:
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=2, help="ticks; a tenth as many wide records")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    database = duckdb.connect()
    database.execute("SET threads = 1")
    with tempfile.TemporaryDirectory() as folder:
        for name, records in KINDS.items():
            rows = rows_of(records, int(options.millions * (1e6 if name == "ticks" else 1e5)))
            print(f"\n| {name}, {rows.num_rows:,} | write | bytes a row | DuckDB, all | DuckDB, sum | pyarrow, all |")
            print("|---|---|---|---|---|---|")
            for choice, how in CHOICES.items():
                measure(Path(folder) / "rows.parquet", rows, choice, how, database, options.repeats)


def measure(  # noqa: PLR0913, PLR0917 - one row of the table
    path: Path, rows: pa.Table, choice: str, how: dict[str, Any], database: duckdb.DuckDBPyConnection, repeats: int
) -> None:
    written = best_of(repeats, lambda: write(path, rows, how))
    names = [name for name in rows.column_names if name not in how.get("without", ())]
    everything = ", ".join(f'bit_xor(hash("{name}"))' for name in names)
    read = [
        best_of(repeats, lambda: database.execute(f"SELECT {everything} FROM '{path}'").fetchall()),
        best_of(
            repeats,
            lambda: database.execute(f"SELECT symbol, avg(price), sum(size) FROM '{path}' GROUP BY 1").fetchall(),
        ),
        best_of(repeats, lambda: pq.read_table(path, use_threads=False)),
    ]
    millions = rows.num_rows / 1e6
    cells = [f"{written / millions:.2f}", f"{path.stat().st_size / rows.num_rows:.2f}"]
    cells += [f"{seconds / millions:.3f}" for seconds in read]
    print(f"| {choice} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
