"""A lost or replaced catalog: no table is created over an existing one, and the error names the fix."""

from __future__ import annotations

import dataclasses
import gzip
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table

from frazil.cli.catalog import read_metadata
from frazil.cli.main import frazil
from frazil.commit.marker import property_name
from frazil.errors import AccessDenied, SpecError, TableLost
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.processes import identify_process
from frazil.host.records import Launch, LaunchKind
from frazil.json_files import replace_json
from frazil.signals.signal_table import SIGNALS_PARTITION_SPEC, SIGNALS_SCHEMA, SIGNALS_TABLE
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from frazil.table.declared_tables import DeclaredTable
from frazil.table.lost_tables import find_lost_table
from frazil.table.tables import ensure_dead_letters, ensure_declared, ensure_table, load_stream_table, state_location

Stream = Callable[..., StreamSpec]


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def write(table: Table) -> None:
    schema = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([], schema=schema))


def lose(home: Path) -> Catalog:
    for path in home.glob("catalog.db*"):
        path.unlink()
    return load_catalog(None)


def test_no_table_is_created_where_another_table_exists(catalog: Catalog, unconfigured: Path, stream: Stream) -> None:
    made = ensure_table(catalog, stream())
    write(made)
    files = sorted(local(made.location()).rglob("*"))
    empty = lose(unconfigured)
    with pytest.raises(TableLost, match=r"demo\.flights is not in the catalog 'default'") as error:
        ensure_table(empty, stream())
    sentence = str(error.value)
    assert made.metadata_location in sentence
    assert "with 1 snapshot," in sentence
    assert "the catalog has no tables, so the table" in sentence
    assert "frazil register" not in sentence, "another catalog may still have the table"
    assert sorted(local(made.location()).rglob("*")) == files
    assert not empty.table_exists("demo.flights")


def test_the_command_in_the_error_registers_the_table_again(catalog: Catalog, stream: Stream) -> None:
    made = ensure_table(catalog, stream())
    write(made)
    write(made)
    ensure_table(catalog, stream(name="other", table="demo.other"))
    catalog.drop_table("demo.flights")
    with pytest.raises(TableLost) as error:
        ensure_table(catalog, stream())
    command = str(error.value).partition("`")[2].partition("`")[0]
    done = CliRunner().invoke(frazil, shlex.split(command)[1:], catch_exceptions=False)
    reported = f"demo.flights is in the catalog 'default' again, with 2 snapshots, in {made.location()}.\n"
    assert done.output == reported
    refused = CliRunner().invoke(frazil, shlex.split(command)[1:])
    assert "has a table demo.flights: nothing was registered" in str(refused.exception)
    again = ensure_table(load_catalog(None), stream())
    assert (again.metadata.table_uuid, again.metadata_location) == (made.metadata.table_uuid, made.metadata_location)
    assert find_lost_table(stream()) is None


def register(*words: str) -> Result:
    return CliRunner().invoke(frazil, ["register", *words])


def refusal(*words: str) -> str:
    done = register(*words)
    assert isinstance(done.exception, SpecError), done.output
    assert "othing was registered" in str(done.exception)
    return str(done.exception)


def test_a_table_is_not_registered_in_a_catalog_that_took_the_place_of_its_own(
    catalog: Catalog, unconfigured: Path, stream: Stream, tmp_path: Path
) -> None:
    made = ensure_table(catalog, stream())
    write(made)
    for path in unconfigured.glob("catalog.db*"):
        path.rename(tmp_path / path.name)
    reason = find_lost_table(stream()) or ""
    assert reason.startswith(f"the catalog's file {unconfigured}/catalog.db does not exist, so the table demo.flights")
    assert "frazil register" not in reason
    assert "catalog.db does not exist, so another catalog may" in refusal("demo.flights", made.metadata_location)
    assert not (unconfigured / "catalog.db").exists()
    load_catalog(None).create_namespace("demo")
    assert "the catalog has no tables, so another" in refusal("demo.flights", made.metadata_location)
    assert load_catalog(None).list_tables("demo") == []
    ensure_table(load_catalog(None), stream(name="other", table="lake.city.rides"))
    assert "frazil register" in (find_lost_table(stream()) or ""), "tables of nested namespaces count, too"
    lose(unconfigured)
    for path in tmp_path.glob("catalog.db*"):
        path.rename(unconfigured / path.name)
    assert ensure_table(load_catalog(None), stream()).metadata_location == made.metadata_location


def test_a_table_is_not_registered_while_its_writer_runs(catalog: Catalog, stream: Stream) -> None:
    made = ensure_table(catalog, stream())
    made.transaction().set_properties({property_name("flights"): "{}"}).commit_transaction()
    ensure_table(catalog, stream(name="other", table="demo.other"))
    catalog.drop_table("demo.flights")
    launch = Launch("l", LaunchKind.SUPERVISED, 1, writer=identify_process(os.getpid()))
    run_folder("flights").mkdir(parents=True)
    replace_json(run_folder("flights") / "lock", dataclasses.asdict(launch))
    heartbeat = Heartbeat("flights", 1, "f", Phase.WAITING, 1, 1, 1, 1, table="demo.flights")
    heartbeat.write(run_folder("flights"))
    assert "a writer of stream flights runs on this host" in refusal("demo.flights", made.metadata_location)
    (run_folder("flights") / "lock").unlink()
    assert register("demo.flights", made.metadata_location).exit_code == 0


@pytest.mark.parametrize("contents", [None, b"Obj\x01\xff\xfe", b"no json", b"{}"])
def test_a_mistyped_metadata_file_registers_nothing_and_the_right_one_is_accepted_later(
    contents: bytes | None, catalog: Catalog, unconfigured: Path, stream: Stream, tmp_path: Path
) -> None:
    made = ensure_table(catalog, stream())
    empty, wrong = lose(unconfigured), tmp_path / "mistyped.metadata.json"
    if contents is not None:
        wrong.write_bytes(contents)
    said = "does not exist" if contents is None else "is not a metadata file of a table"
    assert said in refusal("demo.flights", f"file://{wrong}")
    assert empty.list_namespaces() == []
    assert register("demo.flights", made.metadata_location, "--no-other-catalog").exit_code == 0
    assert empty.load_table("demo.flights").metadata.table_uuid == made.metadata.table_uuid


def test_a_path_relative_to_the_current_folder_is_registered_as_an_absolute_path(
    catalog: Catalog, unconfigured: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ensure_table(catalog, stream())
    lose(unconfigured)
    monkeypatch.chdir(local(made.location()))
    relative = f"metadata/{Path(made.metadata_location).name}"
    assert register("demo.flights", relative, "--no-other-catalog").exit_code == 0
    assert load_catalog(None).load_table("demo.flights").metadata_location == made.metadata_location


def test_a_folder_or_an_unsupported_scheme_cannot_be_registered(catalog: Catalog, tmp_path: Path) -> None:
    assert "is not a metadata file of a table" in refusal("demo.flights", f"file://{tmp_path}")
    assert "the scheme 'gopher' is not supported" in str(register("demo.flights", "gopher://a/x.json").exception)
    assert catalog.list_namespaces() == []


def test_a_metadata_file_that_is_not_the_tables_newest_is_registered_only_if_a_user_asks_for_it(
    catalog: Catalog, unconfigured: Path, stream: Stream
) -> None:
    made = ensure_table(catalog, stream())
    write(made)
    older = made.metadata_location
    write(made)
    lose(unconfigured)
    assert "another catalog may still have the table" in refusal("demo.flights", older)
    said = refusal("demo.flights", older, "--no-other-catalog")
    assert "is not the newest metadata file of its table" in said
    assert f"`frazil register demo.flights {made.metadata_location}`" in said
    assert register("demo.flights", older, "--older", "--no-other-catalog").exit_code == 0
    assert load_catalog(None).load_table("demo.flights").metadata_location == older


def test_metadata_of_another_table_that_had_the_folder_later_is_not_newer(
    catalog: Catalog, unconfigured: Path, stream: Stream
) -> None:
    made = ensure_table(catalog, stream())
    schema = made.schema()
    catalog.drop_table("demo.flights")
    again = catalog.create_table("demo.flights", schema)
    write(again)
    write(again)
    lose(unconfigured)
    assert register("demo.flights", made.metadata_location, "--no-other-catalog").exit_code == 0


def test_a_table_that_the_catalog_has_under_another_name_is_not_registered_a_second_time(
    catalog: Catalog, stream: Stream
) -> None:
    made = ensure_table(catalog, stream())
    catalog.rename_table("demo.flights", "demo.renamed")
    for name in ("demo.flights", "other.flights"):
        assert "under the name demo.renamed. Under two names" in refusal(name, made.metadata_location)
    assert catalog.list_namespaces() == [("demo",)]


def test_a_file_that_only_the_catalog_server_may_read_is_not_refused() -> None:
    class Forbidden:
        def new_input(self, _: str) -> None:
            raise PermissionError("not yours")

    class Server:
        properties: ClassVar[dict[str, str]] = {}

        def _load_file_io(self, location: str) -> Forbidden:  # noqa: ARG002
            return Forbidden()

    assert read_metadata(cast(Catalog, Server()), "file:///lake/x.metadata.json") is None


@pytest.mark.parametrize("make", ["dead letters", "signals"])
def test_a_lost_dead_letter_or_signals_table_is_reported_and_not_recreated(
    make: str, catalog: Catalog, unconfigured: Path, stream: Stream
) -> None:
    def ensure(catalog: Catalog) -> Table:
        if make == "dead letters":
            return ensure_dead_letters(catalog, stream())
        return ensure_declared(catalog, DeclaredTable(SIGNALS_TABLE, SIGNALS_SCHEMA, SIGNALS_PARTITION_SPEC), "signals")

    write(ensure(catalog))
    with pytest.raises(TableLost):
        ensure(lose(unconfigured))


def test_a_location_of_another_table_is_refused(catalog: Catalog, stream: Stream, tmp_path: Path) -> None:
    location = f"file://{tmp_path}/lake/rides"
    write(ensure_table(catalog, stream(table={"identifier": "a.b", "location": location})))
    with pytest.raises(TableLost, match=r"a\.c .*lake/rides holds the table a\.b\. If a\.c was renamed"):
        ensure_table(catalog, stream(table={"identifier": "a.c", "location": location}))


def test_commit_records_alone_prove_that_a_table_existed(catalog: Catalog, unconfigured: Path, stream: Stream) -> None:
    made = ensure_table(catalog, stream())
    journal = local(state_location(made, "flights")) / "journal" / "00000001-00000001.json"
    journal.parent.mkdir(parents=True)
    journal.write_bytes(b"{}")
    for path in (local(made.location()) / "metadata").iterdir():
        path.unlink()
    with pytest.raises(TableLost, match="commit records of flights") as error:
        ensure_table(lose(unconfigured), stream())
    assert "frazil register" not in str(error.value)


def test_an_interrupted_table_creation_is_completed(catalog: Catalog, unconfigured: Path, stream: Stream) -> None:
    made = ensure_table(catalog, stream())
    again = ensure_table(lose(unconfigured), stream())
    assert again.location() == made.location()
    assert again.metadata.table_uuid != made.metadata.table_uuid


def test_a_table_is_not_created_over_metadata_that_cannot_be_read(
    catalog: Catalog, unconfigured: Path, stream: Stream
) -> None:
    metadata = local(ensure_table(catalog, stream()).metadata_location)
    for data in (b"{", gzip.compress(b"{}"), b"\x1f\x8bxx"):
        metadata.write_bytes(data)
        with pytest.raises(TableLost, match="that cannot be read"):
            ensure_table(lose(unconfigured), stream())


def test_a_check_creates_nothing(unconfigured: Path, stream: Stream) -> None:
    assert load_stream_table(stream()) is None
    assert find_lost_table(stream()) is None
    assert not list(unconfigured.rglob("*"))


def test_a_check_finds_what_the_catalog_had_before_it_was_lost(
    catalog: Catalog, unconfigured: Path, stream: Stream
) -> None:
    assert find_lost_table(stream()) is None
    write(ensure_table(catalog, stream()))
    assert find_lost_table(stream()) is None
    for path in unconfigured.glob("catalog.db*"):
        path.unlink()
    assert "demo.flights is not in the catalog" in (find_lost_table(stream()) or "")
    assert not (unconfigured / "catalog.db").exists()
    with pytest.raises(NoSuchTableError):
        load_catalog(None).load_table("demo.flights")


class Remote:
    """A catalog whose server decides where tables are, as REST catalogs do."""

    def __init__(self, inner: Catalog, refusal: Exception | None = None) -> None:
        self.inner, self.refusal = inner, refusal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create_table_transaction(self, *arguments: Any, **named: Any) -> Any:
        if self.refusal:
            raise self.refusal
        return self.inner.create_table_transaction(*arguments, **named)


def test_a_server_is_asked_where_it_would_create_the_table(
    catalog: Catalog, unconfigured: Path, stream: Stream
) -> None:
    write(ensure_table(Remote(catalog), stream()))
    empty = Remote(lose(unconfigured))
    with pytest.raises(TableLost, match="with 1 snapshot,"):
        ensure_table(empty, stream())
    assert not empty.table_exists("demo.flights")


@pytest.mark.parametrize(
    "refusal",
    [BadRequestError("no stage-create"), NotImplementedError("501"), RESTError("405"), TableAlreadyExistsError("409")],
)
def test_a_table_is_created_if_the_server_does_not_report_where_it_would_create_it(
    catalog: Catalog, stream: Stream, refusal: Exception
) -> None:
    assert ensure_table(Remote(catalog, refusal), stream()).name() == ("demo", "flights")


def test_a_server_that_denies_access_is_not_treated_as_one_without_table_locations(
    catalog: Catalog, stream: Stream
) -> None:
    with pytest.raises(AccessDenied):
        ensure_table(Remote(catalog, ForbiddenError("no")), stream())
