"""The cost of the check that runs each minute, on a table with 10,000 signalled windows and 500 streams: when no window
completes, and when one does. Goal: under 2 s.

    make bench BENCH=signals
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog

from frazil.commit.marker import read_marker
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain, Window, windows_between
from frazil.signals.completion import assess_table, signal_windows
from frazil.signals.signal_table import Signal, SignalState, TableSignals, append_signals, load_newest_signals
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from tests.made_batches import EventTimes, MadeStream

T = TypeVar("T")

BEGIN = 1_388_361_600_000_000
NOW_MS = 2_000_000_000_000
STREAM = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.made
schema: {{at: timestamptz}}
event-time: at
complete: hour
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=24, help="windows an append; 1 is the worst, an hour each hour")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FRAZIL_HOME": folder, "PYICEBERG_HOME": folder}
        specs = declared(Path(folder), chosen.streams)
        catalog = load_catalog(None)
        end = BEGIN + chosen.windows * Grain.HOUR.us
        made = land(specs, end)
        fill(catalog, chosen.windows, chosen.at_once, sequence=made.tables.main.refresh().metadata.last_sequence_number)
        timed("a look, nothing complete", lambda: assess_table(catalog, specs))
        made.columns = lambda rows: {"at": pa.array([end] * rows)}
        raise_all(made, specs, end + Grain.HOUR.us)
        found = timed("a look, one window complete", lambda: assess_table(catalog, specs))
        assert found is not None
        assert len(found.decision.complete) == 1
        reported = timed("counting and signalling it", lambda: signal_windows(catalog, found, clock_ms=NOW_MS))
        assert len(reported) == 1
        timed(
            "what Airflow does not have (1 signal)",
            lambda: TableSignals.load(catalog, "demo.made").after(chosen.windows),
        )
        day = timed(
            "the signals of one day",
            lambda: load_newest_signals(catalog, "demo.made", from_us=BEGIN, to_us=BEGIN + Grain.DAY.us),
        )
        assert len(day) == 24


def declared(folder: Path, count: int) -> list[StreamSpec]:
    specs = []
    for number in range(count):
        path = folder / f"s{number}.yaml"
        path.write_text(STREAM.format(name=f"s{number}"))
        specs.append(load_stream(path))
    return specs


def land(specs: list[StreamSpec], watermark_us: int) -> MadeStream:
    """Make one real commit, and copy its marker for the other streams."""
    made = MadeStream(specs[0], NOW_MS, partitions=32)
    made.columns = lambda rows: {"at": pa.array([watermark_us - 1] * rows)}
    made.land(dict.fromkeys(range(32), (0, 100)), times=EventTimes(dict.fromkeys(range(32), watermark_us)))
    raise_all(made, specs, watermark_us)
    return made


def raise_all(made: MadeStream, specs: list[StreamSpec], watermark_us: int) -> None:
    table = made.tables.main.refresh()
    marker = read_marker(table.properties, specs[0].name)
    assert marker is not None
    copies = [dataclasses.replace(marker, stream=spec.name, watermark_us=watermark_us) for spec in specs]
    with table.transaction() as change:
        change.set_properties({copy.property_name: copy.to_property() for copy in copies})
    made.tables.main.forget()


def fill(catalog: Catalog, count: int, at_once: int, *, sequence: int) -> None:
    windows = list(windows_between(Grain.HOUR, BEGIN, BEGIN + count * Grain.HOUR.us))
    for start in range(0, count, at_once):
        some = windows[start : start + at_once]
        seen = TableSignals.load(catalog, "demo.made")
        cursor = Cursor(Grain.HOUR, BEGIN, some[-1].end_us, sequence)
        assert append_signals(catalog, seen, [row(w, sequence) for w in some], cursor, clock_ms=NOW_MS)


def row(window: Window, sequence: int) -> Signal:
    return Signal(
        table="demo.made", partition=window.key, start_us=window.start_us, end_us=window.end_us, revision=1,
        state=SignalState.COMPLETE, rows=1, dead_letters=0, late_rows=0, watermark_us=window.end_us, snapshot_id=1,
        sequence_number=sequence, signalled_at_ms=NOW_MS,
    )  # fmt: skip


def timed(what: str, call: Callable[[], T]) -> T:
    wall, cpu = time.perf_counter(), time.process_time()
    answer = call()
    print(f"{what:32} {time.perf_counter() - wall:6.2f} s wall {time.process_time() - cpu:6.2f} s CPU")
    return answer


if __name__ == "__main__":
    main()
