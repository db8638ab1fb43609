"""What every command says about a stream whose table the catalog has lost, and that it is well once that is back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from frazil.cli.main import frazil
from frazil.errors import TableLost
from frazil.home import run_folder
from frazil.host.json_file import replace_json
from frazil.host.records import ExitRecord, Launch, LaunchKind, append_exit
from frazil.table.catalogs import load_catalog
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import land, made_stream

SAID = "the table demo.made is not in the catalog 'default', but its location"


@pytest.fixture
def made(tmp_path: Path, frazil_home: Path) -> MadeStream:  # noqa: ARG001
    stream = made_stream(tmp_path)
    land(stream, 2)
    return stream


def call(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(frazil, [*arguments, "--streams", str(folder)])
    is_lost = arguments[0] == "health" and SAID in done.stdout
    assert done.exit_code == (TableLost.exit_code if is_lost else 0), (done.output, done.exception)
    return done.stdout


def refused(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(frazil, [*arguments, "--streams", str(folder)])
    assert isinstance(done.exception, TableLost), (done.output, done.exception)
    return str(done.exception)


def problems(folder: Path) -> list[str]:
    return list(json.loads(call(folder, "status", "--json"))["streams"][0]["problems"])


def beyond(folder: Path) -> list[str]:
    (stream,) = json.loads(call(folder, "health", "--json"))["streams"]
    return [reading["rule"] for reading in stream["beyond"]]


def put_aside(home: Path, *, back: bool = False) -> None:
    """FRAZIL_HOME named another folder for a while: the tables exist, and the catalog does not."""
    for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
        here, there = home / name, home / f"aside-{name}"
        if back:
            here.unlink(missing_ok=True)
        source, target = (there, here) if back else (here, there)
        if source.exists():
            source.rename(target)


def test_a_lost_catalog_is_said_everywhere_and_changes_nothing(
    made: MadeStream, tmp_path: Path, frazil_home: Path
) -> None:
    location = Path(made.tables.main.refresh().location().removeprefix("file://"))
    before = [p for p in problems(tmp_path) if "Kafka" not in p]
    assert "table" not in beyond(tmp_path)
    files = sorted(location.rglob("*"))
    put_aside(frazil_home)
    assert any(p.startswith(f"TableLost: {SAID}") for p in problems(tmp_path))
    assert "table" in beyond(tmp_path)
    for words in (("health",), ("health", "demo.made")):
        assert call(tmp_path, *words).count(SAID) == 1, "once, whatever says it"
    for command in (["audit", "made"], ["forget", "made", "--yes"], ["adopt", "made", "--yes"]):
        assert SAID in refused(tmp_path, *command)
    for command in (["partitions", "demo.made"], ["orphans", "demo.made"], ["maintain", "demo.made", "--dry-run"]):
        assert SAID in refused(tmp_path, *command), command
    assert SAID in refused(tmp_path, "orphans", "demo.made_dead_letters"), "it is lost with the stream's table"
    for verb in ("pause", "resume", "restart"):
        said = call(tmp_path, verb, "made")
        assert SAID in said
        assert "starts it" not in said
    assert not (frazil_home / "catalog.db").exists(), "who looks makes no catalog in the lost one's place"
    assert sorted(location.rglob("*")) == files
    put_aside(frazil_home, back=True)
    assert [p for p in problems(tmp_path) if "Kafka" not in p] == before
    assert "table" not in beyond(tmp_path)
    call(tmp_path, "audit", "made")


def test_a_table_that_is_gone_with_its_folder_is_said_on_the_host_that_committed_to_it(
    tmp_path: Path,
    frazil_home: Path,  # noqa: ARG001
) -> None:
    location = made_stream(tmp_path).tables.main.refresh().location()
    load_catalog(None).drop_table("demo.made")
    shutil.rmtree(location.removeprefix("file://"))
    assert not [p for p in problems(tmp_path) if "TableLost" in p]
    launch = Launch("launch-1", LaunchKind.SUPERVISED, 1)
    run_folder("made").mkdir(parents=True, exist_ok=True)
    replace_json(run_folder("made") / "lock", launch.to_json())
    append_exit(run_folder("made"), ExitRecord("launch-1", 0, 1, 2, "f", 0, committed=True))
    (said,) = (p for p in problems(tmp_path) if "TableLost" in p)
    assert "a writer of this host committed to the table demo.made" in said
    call(tmp_path, "forget", "made", "--yes")
    assert not [p for p in problems(tmp_path) if "TableLost" in p]
