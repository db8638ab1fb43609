"""SIGKILL of the writer at every point of a batch: the next writer completes exactly the produced records."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .exactness import check_exact, parquet_files

CRASHING = Path(__file__).parent / "crashing_writer.py"
BAD = [b"not json", b"[]", None]
JOURNALED = {"after-journal", "after-dead-letters", "after-commit"}


@pytest.mark.parametrize(
    ("point", "kind"),
    [
        ("while-staging", "spark"),
        ("after-journal", "python"),
        # `make test` has these in test_dag_kills.py already, without a JVM.
        *(
            pytest.param(point, "spark", marks=pytest.mark.soak)
            for point in ("after-journal", "after-stage", "after-dead-letters", "after-commit")
        ),
    ],
)
def test_a_writer_killed_anywhere_loses_and_repeats_nothing(
    stream: Any, events: Callable[[Iterable[int]], Iterator[bytes]], point: str, kind: str, tmp_path: Path
):
    stream.produce([*events(range(3000)), *BAD], partitions=4)
    command = stream.command("--until-caught-up")
    command[1] = str(CRASHING)
    points = tmp_path / "points"
    points.write_text(point)
    environment = {**os.environ, "FRAZIL_TEST_CRASHES": str(points), "FRAZIL_TEST_ENGINE": kind}
    crashed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr[-3000:]
    staged = parquet_files(stream)

    stream.catch_up()

    check_exact(stream, range(3000), rejected=BAD)
    if point in JOURNALED:
        assert parquet_files(stream) == staged, "the journal was to be committed without writing Parquet again"
