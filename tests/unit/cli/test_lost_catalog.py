"""What every command reports about a stream whose table the catalog has lost, until the catalog is restored."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyiceberg.table import Table

from frazil.cli.main import frazil
from frazil.commit.marker import property_name
from frazil.commit.open_streams import explain_lost_table
from frazil.doctor.streams import check_connections
from frazil.errors import SpecError, TableLost, explain
from frazil.home import run_folder
from frazil.host.records import ExitRecord, Launch, LaunchKind, append_exit
from frazil.json_files import replace_json
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from frazil.table.lost_tables import missing_table_error
from frazil.table.tables import load_stream_table
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import land, made_stream

SAID = "the table demo.made is not in the catalog 'default', but its location"
SAID_OF_ANOTHER = "table demo.made is not the table that the stream wrote to"


@pytest.fixture
def made(tmp_path: Path, frazil_home: Path) -> MadeStream:  # noqa: ARG001
    stream = made_stream(tmp_path)
    land(stream, 2)
    return stream


def call(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(frazil, [*arguments, "--streams", str(folder)])
    is_lost = arguments[0] == "health" and (SAID in done.stdout or SAID_OF_ANOTHER in done.stdout)
    assert done.exit_code == (TableLost.exit_code if is_lost else 0), (done.output, done.exception)
    return done.stdout


def refused(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(frazil, [*arguments, "--streams", str(folder)])
    assert isinstance(done.exception, TableLost), (done.output, done.exception)
    return str(done.exception)


def assert_refused_by_checks(folder: Path, made: MadeStream, reason: str) -> None:
    """Assert that `validate --connect` and `doctor` each report the lost table once."""
    validated = CliRunner().invoke(frazil, ["validate", "--connect", "--json", "--streams", str(folder)])
    assert validated.exit_code == SpecError.exit_code, validated.output
    document = json.loads(validated.stdout)
    for messages in (document["errors"], [finding.message for finding in check_connections({folder: made.spec})]):
        assert [message.count(reason) for message in messages if reason in message] == [1], messages
    assert not [good for good in document["connections"] if "can hold" in good]


def test_checks_do_not_create_a_missing_catalog_file(made: MadeStream, tmp_path: Path, frazil_home: Path) -> None:
    put_aside(frazil_home)
    assert_refused_by_checks(tmp_path, made, f"the catalog's file {frazil_home / 'catalog.db'} does not exist")
    assert not (frazil_home / "catalog.db").exists()


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("named", [(), ("early",), ("made",)], ids=str)
def test_checks_of_a_new_stream_do_not_create_a_missing_catalog_file(
    tmp_path: Path, frazil_home: Path, named: tuple[str, ...]
) -> None:
    declared = (tmp_path / "made.yaml").read_text()
    for name in ("made", "early"):
        table = f"demo.{name}, catalog: default" if name in named else f"demo.{name}"
        text = declared.replace("name: made", f"name: {name}").replace("demo.made", table)
        (tmp_path / f"{name}.yaml").write_text(text)
    put_aside(frazil_home)
    document = json.loads(
        CliRunner().invoke(frazil, ["validate", "--connect", "--json", "--streams", str(tmp_path)]).stdout
    )
    assert not (frazil_home / "catalog.db").exists()
    assert [error.partition(": table: ")[0] for error in document["errors"] if SAID in error] == ["early, made"]
    assert not [good for good in document["connections"] if "can hold" in good]


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


def test_a_lost_catalog_is_reported_everywhere_and_changes_nothing(
    made: MadeStream, tmp_path: Path, frazil_home: Path
) -> None:
    location = Path(made.tables.main.refresh().location().removeprefix("file://"))
    before = [p for p in problems(tmp_path) if "Kafka" not in p]
    assert "table" not in beyond(tmp_path)
    files = sorted(location.rglob("*"))
    put_aside(frazil_home)
    cause = f"the catalog's file {frazil_home}/catalog.db does not exist"
    assert any(p.startswith(f"TableLost: {cause}, so {SAID}") for p in problems(tmp_path))
    assert "table" in beyond(tmp_path)
    for words in (("health",), ("health", "demo.made")):
        assert call(tmp_path, *words).count(SAID) == 1, "once, whatever says it"
    for command in (["audit", "made"], ["cost", "made"], ["forget", "made", "--yes"], ["adopt", "made", "--yes"]):
        assert SAID in refused(tmp_path, *command)
    for command in (["partitions", "demo.made"], ["orphans", "demo.made"], ["maintain", "demo.made", "--dry-run"]):
        assert SAID in refused(tmp_path, *command), command
    assert SAID in refused(tmp_path, "orphans", "demo.made_dead_letters"), "it is lost with the stream's table"
    for verb in ("pause", "resume"):
        said = call(tmp_path, verb, "made")
        assert SAID in said
        assert "starts it" not in said
    assert not (frazil_home / "catalog.db").exists(), "who looks makes no catalog in the lost one's place"
    assert sorted(location.rglob("*")) == files
    put_aside(frazil_home, back=True)
    assert [p for p in problems(tmp_path) if "Kafka" not in p] == before
    assert "table" not in beyond(tmp_path)
    call(tmp_path, "audit", "made")


def test_a_lost_catalog_of_several_streams_is_one_cause(made: MadeStream, tmp_path: Path, frazil_home: Path) -> None:
    names = [f"made{number}" for number in range(4)]
    for name in names:
        table = load_catalog(None).create_table(f"demo.{name}", made.tables.main.refresh().schema())
        table.append(pa.Table.from_pylist([], schema=table.schema().as_arrow()))
        text = (tmp_path / "made.yaml").read_text().replace("demo.made", f"demo.{name}")
        (tmp_path / f"{name}.yaml").write_text(text.replace("name: made", f"name: {name}"))
        run_folder(name).mkdir(parents=True, exist_ok=True)
        replace_json(run_folder(name) / "lock", dataclasses.asdict(Launch("launch-1", LaunchKind.SUPERVISED, 1)))
    put_aside(frazil_home)
    for name in names[:2]:  # their writers have ended for this reason
        lost = missing_table_error(load_stream(tmp_path / f"{name}.yaml"))
        assert lost is not None
        fields = ExitRecord.fields_of(explain(lost))
        append_exit(run_folder(name), ExitRecord("launch-1", 25, 1, 2, "f", 0, committed=True, **fields))
    shown = call(tmp_path, "status")
    cause = f"the catalog 'default' does not have tables that it had: the catalog's file {frazil_home}/catalog.db does"
    assert [line.partition(": ")[0] for line in shown.splitlines() if cause in line] == [
        "made, made0, made1 and 2 more"
    ]
    assert SAID.replace("demo.made", "demo.made0") not in shown
    assert SAID.replace("demo.made", "demo.made0") in call(tmp_path, "status", "made0")
    health = CliRunner().invoke(frazil, ["health", "--streams", str(tmp_path)])
    assert (health.exit_code, health.stdout.count(cause), SAID in health.stdout) == (TableLost.exit_code, 1, False)


def test_a_table_lost_with_its_folder_is_reported_on_the_host_that_committed_to_it(
    tmp_path: Path,
    frazil_home: Path,  # noqa: ARG001
) -> None:
    made = made_stream(tmp_path)
    location = made.tables.main.refresh().location()
    load_catalog(None).drop_table("demo.made")
    shutil.rmtree(location.removeprefix("file://"))
    assert not [p for p in problems(tmp_path) if "TableLost" in p]
    launch = Launch("launch-1", LaunchKind.SUPERVISED, 1)
    run_folder("made").mkdir(parents=True, exist_ok=True)
    replace_json(run_folder("made") / "lock", dataclasses.asdict(launch))
    append_exit(run_folder("made"), ExitRecord("launch-1", 0, 1, 2, "f", 0, committed=True, table="demo.before"))
    assert not [p for p in problems(tmp_path) if "TableLost" in p], "it committed to the table declared before"
    append_exit(run_folder("made"), ExitRecord("launch-1", 0, 1, 2, "f", 0, committed=True, table="demo.made"))
    (said,) = (p for p in problems(tmp_path) if "TableLost" in p)
    assert "a writer on this host committed to the table demo.made" in said
    assert "or register the table's newest metadata file" in said
    load_catalog(None).drop_table("demo.made_dead_letters")
    (new,) = (p for p in problems(tmp_path) if "TableLost" in p)
    assert "the catalog has no tables. Restore the catalog, or configure the right one. If" in new
    assert_refused_by_checks(tmp_path, made, "a writer on this host committed to the table demo.made")
    call(tmp_path, "forget", "made", "--yes")
    assert not [p for p in problems(tmp_path) if "TableLost" in p]


def replace(location: Path | None, *rows: object) -> str:
    """Drop the table as another engine does, and create it again; returns the folder of the first."""
    catalog = load_catalog(None)
    first = catalog.load_table("demo.made")
    catalog.drop_table("demo.made")
    again = catalog.create_table("demo.made", first.schema(), location=f"file://{location}" if location else None)
    if rows:
        again.append(first.scan().to_arrow())
    return first.location()


@pytest.mark.parametrize("rows", [(), ("some",)])
def test_a_replaced_table_is_reported_everywhere_until_it_is_registered_again(
    made: MadeStream, tmp_path: Path, rows: tuple[str, ...]
) -> None:
    first = replace(tmp_path / "elsewhere", *rows)
    (said,) = (p for p in problems(tmp_path) if "Kafka" not in p)
    assert said.startswith(f"TableLost: {SAID_OF_ANOTHER}")
    command = said.partition("frazil register ")[2].partition("`")[0]
    assert command.startswith(f"demo.made {first}/metadata/")
    assert "`frazil forget made` to begin again" in said
    assert "table" in beyond(tmp_path)
    assert "another table" in call(tmp_path, "status", "made")
    for words in (("health",), ("health", "demo.made")):
        assert call(tmp_path, *words).count(SAID_OF_ANOTHER) == 1, words
    assert_refused_by_checks(tmp_path, made, SAID_OF_ANOTHER)
    for line in (["audit", "made"], ["adopt", "made", "--yes"], ["reset", "made", "--to", "earliest", "--yes"]):
        assert SAID_OF_ANOTHER in refused(tmp_path, *line), line
    load_catalog(None).drop_table("demo.made")
    CliRunner().invoke(frazil, ["register", *command.split()], catch_exceptions=False)
    assert not [p for p in problems(tmp_path) if "Kafka" not in p]
    assert "is clean" in call(tmp_path, "audit", "made")


def test_a_table_is_not_registered_in_a_catalog_without_another_table_of_its_stream(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/other.db"
    for name, value in {"TYPE": "sql", "URI": uri, "WAREHOUSE": (tmp_path / "other").as_uri()}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__OTHER__{name}", value)
    other, tables = load_catalog("other"), (made.tables.main.refresh(), made.tables.dead_letters.refresh())
    other.create_namespace("demo")
    other.create_table("demo.rides", tables[0].schema())
    Path(other.create_table("demo.broken", tables[0].schema()).metadata_location.removeprefix("file://")).unlink()

    def register(table: Table, *words: str) -> Result:
        line = ["register", ".".join(table.name()), table.metadata_location, "--catalog", "other", *words]
        return CliRunner().invoke(frazil, line)

    for table in tables:
        refusal = str(register(table).exception)
        assert "nothing was registered in the catalog 'other': it has no other table of stream made" in refusal
        assert refusal.endswith("If no other catalog has the table, add --no-other-catalog")
    foreign = other.create_table("demo.foreign", tables[0].schema(), properties=tables[1].properties)
    marker = json.loads(foreign.properties[property_name("made")])
    for change in ({"cluster-id": "another"}, {"own-table": ["demo.made", "file:///elsewhere", "another"]}):
        text = json.dumps({**marker, **change})
        foreign.transaction().set_properties({property_name("made"): text}).commit_transaction()
        assert "no other table of stream made" in str(register(tables[0]).exception), change
    assert register(tables[0], "--no-other-catalog").exit_code == 0
    assert register(tables[1]).exit_code == 0, "the catalog has a table of the stream"


@pytest.mark.parametrize("folder", ["elsewhere", None])
def test_a_stream_that_is_forgotten_begins_in_the_table_that_replaced_its_own(
    made: MadeStream, tmp_path: Path, folder: str | None
) -> None:
    replace(tmp_path / folder if folder else None)
    call(tmp_path, "forget", "made", "--yes")
    assert not [p for p in problems(tmp_path) if "TableLost" in p]
    assert explain_lost_table(made.spec, load_stream_table(made.spec)) is None


def test_a_refused_forget_leaves_no_trace_of_a_writer(made: MadeStream, tmp_path: Path) -> None:
    before = call(tmp_path, "status", "made", "--json")
    refusal = CliRunner().invoke(frazil, ["forget", "made", "--streams", str(tmp_path)])
    assert refusal.exit_code == 2
    assert "Error: Forget stream made? Cannot ask: no terminal, so nothing was changed. Pass --yes\n" in refusal.stderr
    assert "Usage:" not in refusal.stderr
    writer = json.loads(call(tmp_path, "status", "made", "--json"))["streams"][0]["writer"]
    assert writer == json.loads(before)["streams"][0]["writer"]
    assert made.tables.marker()


def test_a_stream_is_not_forgotten_in_a_catalog_that_took_the_place_of_its_own(
    made: MadeStream, tmp_path: Path, frazil_home: Path
) -> None:
    tables = [handle.refresh() for handle in (made.tables.main, made.tables.dead_letters)]
    put_aside(frazil_home)
    load_catalog(None).create_namespace("demo")
    for table in tables:
        load_catalog(None).create_table(".".join(table.name()), table.schema(), location=table.location())
    assert "is the metadata of another table" in refused(tmp_path, "forget", "made", "--yes")
    put_aside(frazil_home, back=True)
    call(tmp_path, "audit", "made")


def test_a_dropped_table_is_not_taken_for_new_if_its_dead_letter_table_knows_the_stream(
    made: MadeStream, tmp_path: Path
) -> None:
    location = made.tables.main.refresh().location()
    load_catalog(None).drop_table("demo.made")
    shutil.rmtree(location.removeprefix("file://"))
    assert any("demo.made_dead_letters still has the stream's epoch 1" in p for p in problems(tmp_path))
    assert_refused_by_checks(tmp_path, made, "still has the stream's epoch 1")
    assert "is not in the catalog" in refused(tmp_path, "audit", "made")
    call(tmp_path, "forget", "made", "--yes")
    assert not [p for p in problems(tmp_path) if "TableLost" in p]
    assert explain_lost_table(made.spec, None) is None


def test_a_table_that_was_read_just_before_its_first_writer_began_is_the_streams_own(
    tmp_path: Path,
    frazil_home: Path,  # noqa: ARG001
) -> None:
    made = made_stream(tmp_path)
    before = made.tables.main.refresh()
    stale = load_catalog(None).load_table(before.name())
    made.begin()
    assert explain_lost_table(made.spec, stale) is None


def test_a_stream_that_declares_another_table_begins_there_with_the_same_dead_letters(made: MadeStream) -> None:
    table = made.spec.table.model_copy(update={"identifier": "demo.others"})
    letters = made.spec.dead_letters.model_copy(update={"table": "demo.made_dead_letters"})
    moved = made.spec.model_copy(update={"table": table, "dead_letters": letters})
    assert explain_lost_table(moved, None) is None


def test_a_renamed_table_whose_name_another_table_took_is_reported(made: MadeStream) -> None:
    catalog = load_catalog(None)
    first = catalog.load_table("demo.made")
    catalog.rename_table("demo.made", "demo.kept")
    catalog.create_table("demo.made", first.schema(), location=f"{first.location()}-2")
    lost = explain_lost_table(made.spec, load_stream_table(made.spec))
    assert "rename demo.kept back to demo.made" in str(lost)
