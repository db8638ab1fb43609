"""What `frazil backfill` prints if it fails, without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from frazil.cli import backfill as command
from frazil.cli.main import frazil
from frazil.stream import spark_engine


class Requested:
    def check(self) -> None:
        """Find no problem."""


@contextmanager
def open_any(*_: Any) -> Iterator[Requested]:
    yield Requested()


@pytest.mark.parametrize("printed", ["", "Error: cannot reserve memory\n"])
def test_a_failed_start_of_spark_names_the_log_with_the_output_of_the_jvm(
    declare: Callable[..., Path], frazil_home: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    def fail(*_: Any, output: Path) -> NoReturn:
        output.write_text(printed)
        raise RuntimeError("Java gateway process exited")

    monkeypatch.setattr(command, "open_backfill", open_any)
    monkeypatch.setattr(spark_engine, "SparkEngine", fail)
    done = CliRunner().invoke(frazil, ["backfill", "flights", "--streams", str(declare().parent)])
    assert isinstance(done.exception, RuntimeError)
    log = frazil_home / "backfill" / "flights.log"
    assert (f"What Spark printed is in {log}" in done.stderr.splitlines()) == bool(printed)
