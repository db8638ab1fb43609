"""Actions that a routed stream does not support are refused with an alternative, and change nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from frazil.cli.main import frazil
from frazil.errors import SchemaIncompatible, SpecError
from frazil.spec.load import load_stream
from tests.made_routes import MadeRoute, shop


@pytest.fixture
def folder(tmp_path: Path, frazil_home: Path) -> Path:  # noqa: ARG001
    text = shop().model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(text))
    made = MadeRoute(load_stream(tmp_path / "shop.yaml"), time.time_ns() // 1_000_000)
    made.begin_route("a")
    made.run({"main": 1, "shop.raw_a": 2}, rejected=1)
    return tmp_path


def test_the_field_that_the_route_reads_is_not_renamed(folder: Path) -> None:
    done = CliRunner().invoke(frazil, ["evolve", "shop", "--rename", "kind=sort", "--yes", "--streams", str(folder)])
    assert isinstance(done.exception, SchemaIncompatible), done.output
    assert "the column kind cannot be changed: the route reads the column by its name" in str(done.exception)


def test_frazil_partitions_names_the_setting_for_a_routed_table_without_windows(folder: Path) -> None:
    done = CliRunner().invoke(frazil, ["partitions", "shop.orders", "--streams", str(folder)])
    assert isinstance(done.exception, SpecError)
    assert str(done.exception) == (
        "no window of shop.orders is ever complete: add it to route.complete of stream 'shop'"
    )
