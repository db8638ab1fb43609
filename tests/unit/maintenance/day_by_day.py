"""A stream in a table partitioned by day. Each batch has one row for each day from the 30th on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from frazil.spec.load import load_stream
from tests.made_batches import MadeStream

DAY_US = 86_400_000_000
FIRST_DAY_US = 16_069 * DAY_US
"""30 December 2013."""
BEGIN_MS = 2_000_000_000_000
"""Later than this machine's clock, so that no commit is older than its table."""
YAML = """
name: made
source: {topics: [made], bootstrap-servers: "127.0.0.1:1"}
table: {identifier: demo.made, properties: {write.target-file-size-bytes: "4096"}}
schema: {at: timestamptz, note: string}
event-time: at
partition-by: [day(at)]
"""


def made_stream(folder: Path) -> MadeStream:
    """Declare the stream in the folder, and return it."""
    (folder / "made.yaml").write_text(YAML)
    stream = MadeStream(load_stream(folder / "made.yaml"), BEGIN_MS, partitions=1)
    stream.columns = day_by_day
    return stream


def day_by_day(rows: int) -> Mapping[str, pa.Array]:
    return {
        "at": pa.array(FIRST_DAY_US + np.arange(rows) * DAY_US).cast(pa.timestamp("us", "UTC")),
        "note": pa.array([str(n) for n in range(rows)]),
    }


def land(stream: MadeStream, batches: int, *, rows: int = 2) -> None:
    """Land some batches, one minute apart."""
    if stream.committer is None:
        stream.begin()  # a commit of its own, with a time of its own
    marker = stream.tables.marker()
    at = marker.offsets[stream.topic, 0] if marker else 0
    for start in range(at, at + batches * rows, rows):
        stream.now_ms += 60_000
        stream.land({0: (start, start + rows)})
