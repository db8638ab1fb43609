"""CPU of decoding JSON with `evolution` off, additive and full, side by side.

    .venv/bin/python -m bench.evolution [--records 100000] [--repeats 15]

Measures ticks of 127 bytes without a new field, ticks with a new field in each record, and records of 1 KB with 40
columns. A new field stands for a batch's first staging, or for a field that cannot become a column. Each round measures
all modes in turn. Prints the minimum CPU (user and system) of all rounds, in core-seconds per million records.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path
from typing import Literal

from bench.peer.records import FRAZIL, KINDS, Records
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import Decoder
from frazil.ingest.formats import create_decoder
from frazil.spec import iceberg
from frazil.spec.load import validate_stream

Mode = Literal["off", "additive", "full"]
MODES: tuple[Mode, ...] = ("off", "additive", "full")


def decoder_of(records: Records, mode: Mode) -> Decoder:
    stream = {
        "name": "s",
        "source": {"topics": ["t"], "format": "json", "bootstrap-servers": "broker:9092"},
        "table": "a.b",
        "schema": {column.name: column.type_in(FRAZIL) for column in records.columns},
        "event-time": "ts",
        "coordinates": False,
        "complete": "none",
    }
    return create_decoder("json", iceberg.table_schema(validate_stream(stream, Path("s.yaml"))), {}, mode)


def with_new_field(value: bytes) -> bytes:
    return value[:-1] + b',"gate":"A1"}'


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    ticks, wide = KINDS["ticks"], KINDS["wide"]
    values = [ticks.value(i) for i in range(arguments.records)]
    inputs = {
        "ticks": (ticks, values),
        "ticks with a new field": (ticks, [with_new_field(value) for value in values]),
        "wide": (wide, [wide.value(i) for i in range(arguments.records // 8)]),
    }
    gc.disable()
    for name, (records, made) in inputs.items():
        chunk = RecordChunk.of_values([*made])
        decoders = {mode: decoder_of(records, mode) for mode in MODES}
        best = dict.fromkeys(MODES, float("inf"))
        for _ in range(arguments.repeats):
            for mode, decode in decoders.items():
                started = time.process_time()
                decode(chunk)
                best[mode] = min(best[mode], time.process_time() - started)
        costs = {mode: seconds / len(made) * 1e6 for mode, seconds in best.items()}
        reported = ", ".join(f"{mode} {cost:.3f} ({cost / costs['off']:.2f}×)" for mode, cost in costs.items())
        print(f"{name}: {reported}", flush=True)


if __name__ == "__main__":
    main()
