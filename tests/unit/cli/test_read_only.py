"""A command that only reads a stream writes nothing, even if the dead-letter table was dropped."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from frazil.cli.main import frazil
from frazil.commit.journal import bare_path
from frazil.commit.open_streams import open_read_only, open_stream
from frazil.errors import TableLost
from frazil.operations.fetch import fetch_action_state, fetch_history
from frazil.operations.stream_actions import plan_abandon
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec
from frazil.status.stream import read_stream_state
from frazil.status.table import describe_missing_tables
from frazil.table.catalogs import load_catalog
from tests.made_routes import MadeRoute, shop


@pytest.fixture
def spec(tmp_path: Path, frazil_home: Path) -> StreamSpec:  # noqa: ARG001
    """A stream whose dead-letter table was dropped with its files."""
    text = shop().model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(text))
    made = MadeRoute(load_stream(tmp_path / "shop.yaml"), time.time_ns() // 1_000_000)
    made.begin_route("a")
    made.run({"main": 1, "shop.raw_a": 2, "shop.orders": 3})
    dead_letters = made.tables.dead_letters.current()
    shutil.rmtree(bare_path(dead_letters.location()))
    load_catalog(None).drop_table(made.spec.dead_letter_table)
    return made.spec


def there() -> dict[str, str]:
    """Each table of the catalog, and its metadata."""
    catalog = load_catalog(None)
    names = [name for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace)]
    return {".".join(name): catalog.load_table(name).metadata_location for name in names}


SAYING = (
    "health",
    "audit shop --no-source",
    "dlq list shop",
    "dlq show shop",
    "dlq discard shop --because test --dry-run",
    "dlq replay shop --dry-run",
    "cut shop",
)
OTHERS = ("status", "status shop", "route shop", "backfill shop --status")


def test_read_only_commands_create_no_table_and_report_a_missing_dead_letter_table(
    spec: StreamSpec, tmp_path: Path
) -> None:
    before, missing = there(), f"its dead-letter table {spec.dead_letter_table} is not in the catalog"
    for command in SAYING + OTHERS:
        done = CliRunner().invoke(frazil, [*command.split(), "--streams", str(tmp_path)])
        assert there() == before, command
        assert (missing in f"{done.output} {done.exception}") is (command in SAYING), command
    assert CliRunner().invoke(frazil, ["health", "--streams", str(tmp_path)]).exit_code == TableLost.exit_code


def test_checks_of_the_page_create_no_table_and_actions_require_it(spec: StreamSpec) -> None:
    before = there()
    read_stream_state(spec, now_ms=0)
    describe_missing_tables(spec)
    fetch_history(spec, lookback_ms=60_000)
    fetch_action_state(spec)
    plan_abandon(spec)
    with pytest.raises(TableLost, match="To create an empty dead-letter table, start the writer: `frazil run shop`"):
        open_read_only(spec).tables.dead_letters.current()
    assert there() == before
    open_stream(spec)
    assert open_read_only(spec).tables.dead_letters.current().current_snapshot() is None
