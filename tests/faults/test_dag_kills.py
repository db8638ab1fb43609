"""A DAG starts the real writer, SIGKILL hits it at every point of a batch, and the supervisor starts it again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.commit.marker import read_marker
from frazil.dev.airflow import EmbeddedAirflow
from frazil.host.local import LocalLauncher
from frazil.host.records import read_exits

from .exactness import kills, parquet_files, referenced_files

CHECKOUT = Path(__file__).resolve().parents[2]
POINTS = ["while-staging", "after-journal", "after-stage", "after-dead-letters", "after-commit"]
DAG_FILE = '''
"""The DAG of the stream under test, as dags/writers.py makes it, with a writer that kills itself."""

import os

from frazil.airflow import writer_dags

globals().update(writer_dags(os.environ["FRAZIL_STREAMS"], application=os.environ["FRAZIL_TEST_APPLICATION"]))
'''
RECORDS = 6000
BAD = b"not json"


@pytest.fixture
def airflow(tmp_path: Path, stream: Any, frazil_home: Path) -> Iterator[EmbeddedAirflow]:
    """An Airflow whose one DAG runs the stream's writer, crashing once at each point."""
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "writers.py").write_text(DAG_FILE)
    (tmp_path / "points").write_text("\n".join(POINTS))
    extra = {
        "FRAZIL_HOME": str(frazil_home),
        "FRAZIL_STREAMS": str(stream.streams),
        "FRAZIL_TEST_APPLICATION": str(CHECKOUT / "tests" / "faults" / "crashing_writer.py"),
        "FRAZIL_TEST_CRASHES": str(tmp_path / "points"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }
    airflow = EmbeddedAirflow(tmp_path / "airflow", CHECKOUT, dags=dags, extra=extra)
    try:
        yield airflow.start()
    finally:
        airflow.stop()
        LocalLauncher(stream.name, folder=frazil_home / "streams" / stream.name).stop(force=True)


@pytest.mark.rotates(4, turn=2)
@pytest.mark.timeout(900)
def test_a_writer_that_a_dag_started_survives_a_kill_at_every_point_of_a_batch(
    stream: Any,
    events: Callable[[Iterable[int]], Iterator[bytes]],
    frazil_home: Path,
    request: pytest.FixtureRequest,
    eventually: Any,
):
    stream.declare("commit: {interval: 1s, max-records: 700}\n")
    good = events(range(RECORDS))
    stream.produce((BAD if n % 10 == 9 else next(good) for n in range(RECORDS * 10 // 9)), partitions=4)
    request.getfixturevalue("airflow")

    eventually(lambda: committed(stream) == RECORDS * 10 // 9, within_s=800, every_s=0.5)

    exits = read_exits(frazil_home / "streams" / stream.name)
    assert kills(exits) == [128 + 9] * len(POINTS), "one kill at each point, and nothing else went wrong"
    produced = RECORDS * 10 // 9 - RECORDS * 10 // 9 // 10
    assert stream.ids() == list(range(produced))
    dead_letters = stream.table("_dead_letters").scan().to_arrow()
    assert len(
        set(zip(*(dead_letters[c].to_pylist() for c in ("kafka_partition", "kafka_offset")), strict=True))
    ) == len(dead_letters)
    assert len(dead_letters) == RECORDS * 10 // 9 // 10
    # The writer removes what failed attempts left of a batch after it has committed it.
    eventually(lambda: parquet_files(stream) == referenced_files(stream))
    starts = [exits[i + 1].started_at_ms - exits[i].ended_at_ms for i in range(len(exits) - 1)]
    print(f"relaunched after {[f'{ms / 1000:.1f} s' for ms in starts]}; {os.cpu_count()} cores")


def committed(stream: Any) -> int:
    """Records up to the marker; 0 while there is no table."""
    try:
        marker = read_marker(stream.table().metadata.properties, stream.name)
    except Exception:
        return 0
    return sum(marker.offsets.values()) if marker else 0
