"""`frazil catalog`, `register` and `package`: configure query engines, restore tables, pack Python for executors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import TableAlreadyExistsError, ValidationError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from frazil.cli.options import json_option
from frazil.cli.output import CommandOutput, echo, echo_json
from frazil.commit.marker import marked_streams, try_read_marker
from frazil.errors import SpecError
from frazil.host.local import LocalLauncher
from frazil.spark.jars import JAR_SETS, installed_variant
from frazil.spark.java import require_pyspark
from frazil.spark.package import STORAGES, find_installed, make_package
from frazil.spec.units import format_count
from frazil.table.catalogs import (
    catalog_config,
    list_namespaces,
    list_table_names,
    load_catalog,
    open_existing_catalog,
    translate_catalog_errors,
)
from frazil.table.lost_tables import (
    describe_new_catalog,
    file_name,
    find_newest_metadata,
    find_other_name,
    registration_command,
)
from frazil.table.parallel import run_in_parallel
from frazil.table.reader_configuration import READERS, Reader, configuration
from frazil.table.spark_catalog import needed_jar_sets
from frazil.table.storage import open_store
from frazil.timetext import format_utc


@click.command()
@click.argument("name", required=False)
@click.option("--for", "reader", type=click.Choice(READERS), required=True, help="The engine.")
@json_option
def catalog(name: str | None, reader: Reader, *, as_json: bool) -> None:
    """Print a query engine's configuration for the tables of catalog NAME.

    NAME defaults to the default catalog. Prints Python code for Spark, DuckDB and PyIceberg, and a properties file
    for Trino. Secrets are not printed: references to environment variables replace them.

    \b
    Example:
      frazil catalog --for spark
      frazil catalog lake --for trino > etc/catalog/lake.properties
    """
    config = catalog_config(name)
    packages = [
        each for name in needed_jar_sets(config.properties) for each in JAR_SETS[installed_variant(name)].coordinates
    ]
    text = configuration(reader, config.name, config.properties, packages)
    echo_json({"catalog": config.name, "for": reader, "configuration": text}) if as_json else echo(text)


@click.command()
@click.argument("table")
@click.argument("metadata")
@click.option("--catalog", "name", help="The catalog. Default: the default catalog.")
@click.option("--older", is_flag=True, help="Register METADATA although the table has a newer file.")
@click.option("--no-other-catalog", is_flag=True, help="Register although another catalog may have TABLE.")
@json_option
def register(  # noqa: PLR0913 - one per option
    table: str, metadata: str, *, name: str | None, older: bool, no_other_catalog: bool, as_json: bool
) -> None:
    """Restore TABLE to its catalog, as its metadata file METADATA describes it.

    Use this for a table that was dropped or lost, and whose files still exist. Error messages about such a table
    contain the whole command, with the table's newest metadata file. Changes no file. Refuses a table name that exists,
    and a table that the catalog has under another name. Without --older, refuses all but the table's newest file.

    A table in two catalogs loses the commits of one of them. So register refuses while a writer of the table runs on
    this host. Without --no-other-catalog, it also refuses a catalog that has no other table of the stream.

    \b
    Example:
      frazil register city.rides file:///lake/city/rides/metadata/00412-….metadata.json
    """
    output, catalog = CommandOutput(as_json), open_existing_catalog(name)
    namespace = Catalog.namespace_from(table)
    if not namespace:
        raise SpecError(f"{table!r} is not a table identifier; write namespace.table")
    if not metadata.startswith("/") and not urlsplit(metadata).scheme:
        metadata = f"file://{Path(metadata).absolute()}"  # processes in other folders read it from the catalog
    with translate_catalog_errors(catalog.name):
        described = read_metadata(catalog, metadata)
        if described is not None:
            check_no_writer(table, described)
            check_no_other_name(catalog, table, described)
        if not no_other_catalog:
            check_own_catalog(catalog, table, described)
        if described is not None and not older:
            check_newest(catalog, table, metadata, described)
        catalog = load_catalog(name)  # creates a missing SQLite file
        catalog.create_namespace_if_not_exists(namespace)
        try:
            registered = catalog.register_table(table, metadata)
        except TableAlreadyExistsError:
            raise SpecError(f"the catalog {catalog.name!r} has a table {table}: nothing was registered") from None
    snapshots, location = format_count(len(registered.metadata.snapshots), "snapshot"), registered.location()
    output.say(f"{table} is in the catalog {catalog.name!r} again, with {snapshots}, in {location}.")
    output.end(catalog=catalog.name, table=table, metadata=metadata, location=location)


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), default=Path("frazil-package.tar.gz"))
@click.option(
    "--storage",
    type=click.Choice(STORAGES),
    multiple=True,
    help="A kind of storage for tables, in addition to folders. Default: all kinds whose packages are installed.",
)
@json_option
def package(target: Path, storage: tuple[str, ...], *, as_json: bool) -> None:
    """Pack this Python installation for `resources.package`, with everything that executors need to stage records.

    The archive contains neither Airflow nor PySpark, which the cluster provides. Create the archive again after each
    upgrade of frazil: a writer refuses executors of another version.

    \b
    Example:
      frazil package frazil-package.tar.gz --storage s3
    """
    require_pyspark()
    storages = storage or find_installed(STORAGES)
    make_package(target, storages=storages, say=lambda text: echo(text, err=True))
    where = ", ".join(("folders", *storages))
    size, output = target.stat().st_size, CommandOutput(as_json)
    output.say(f"{target}: {size / 2**20:.0f} MiB, for tables in {where}")
    output.end(package=target, bytes=size, storages=storages)


MAX_ERROR_CHARACTERS = 200


def read_metadata(catalog: Catalog, path: str) -> TableMetadata | None:
    """Read a metadata file; None if only a REST catalog's server can read it. Raises SpecError for other files."""
    open_store(path, catalog.properties)  # raises the usual error for an unsupported scheme
    try:
        return FromInputFile.table_metadata(catalog._load_file_io(location=path).new_input(path))
    except FileNotFoundError:
        raise SpecError(f"the file {path} does not exist: nothing was registered") from None
    except (ValidationError, ValueError, TypeError, KeyError, AttributeError, EOFError) as error:
        raise _not_metadata_error(path, error) from None
    except Exception as error:  # storages raise anything, also where only the server has credentials
        if isinstance(error, OSError) and "is a directory" in str(error).lower():
            raise _not_metadata_error(path, error) from None
        if isinstance(catalog, MetastoreCatalog):
            raise
        return None


def _not_metadata_error(path: str, error: Exception) -> SpecError:
    text = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
    return SpecError(
        f"{path} is not a metadata file of a table ({text}): nothing was registered. Pass the newest "
        "*.metadata.json file of the table's folder `metadata`"
    )


def check_newest(catalog: Catalog, table: str, path: str, metadata: TableMetadata) -> None:
    store = open_store(metadata.location, catalog.properties)
    newest = find_newest_metadata(store, metadata.location, str(metadata.table_uuid))
    if newest is not None and file_name(newest.path) != file_name(path):
        raise SpecError(
            f"{path} is not the newest metadata file of its table: {newest.path} was written later, at "
            f"{format_utc(newest.modified_ms)}, so the commits between them would be missing. Nothing was registered. "
            f"Register the newest file: `{registration_command(catalog.name, table, newest.path)}`; or add --older to "
            "go back to the older state"
        )


def check_no_writer(table: str, metadata: TableMetadata) -> None:
    for stream in marked_streams(metadata.properties):
        observed = LocalLauncher(stream).observe()
        heartbeat = observed.heartbeat if observed.process.is_alive else None
        if heartbeat is not None and heartbeat.epoch is not None and heartbeat.table == table:
            raise SpecError(
                f"a writer of stream {stream} runs on this host, and has taken over {table}: another catalog may "
                "have the table. Nothing was registered. Find out which catalog the writer uses, and stop it: "
                f"`frazil pause {stream}`"
            )


def check_own_catalog(catalog: Catalog, table: str, metadata: TableMetadata | None) -> None:
    """Raise SpecError if another catalog may have the table: this one has no tables, or none of the table's stream."""
    problem = describe_new_catalog(catalog) or (metadata and _describe_missing_streams(catalog, table, metadata))
    if not problem:
        return
    note = f", which was last changed at {format_utc(metadata.last_updated_ms)}" if metadata else ""
    raise SpecError(
        f"nothing was registered in the catalog {catalog.name!r}: {problem}, so another catalog may still have the "
        f"table {table}{note}. A table in two catalogs loses the commits of one of them. Restore that catalog, or "
        "correct FRAZIL_HOME or .pyiceberg.yaml. If no other catalog has the table, add --no-other-catalog"
    )


def _describe_missing_streams(catalog: Catalog, table: str, metadata: TableMetadata) -> str | None:
    """Return which stream of the table has no other table in the catalog. Each stream has a dead-letter table."""
    missing = {name for name in marked_streams(metadata.properties) if try_read_marker(metadata.properties, name)}
    own = Catalog.namespace_to_string(Catalog.namespace_from(table))
    try:
        namespaces = sorted((".".join(each) for each in list_namespaces(catalog)), key=lambda name: name != own)
        for names in (list_table_names(catalog, namespace) for namespace in namespaces if missing):
            others = [name for name in names if name != table]
            for pair in run_in_parallel(partial(_try_load, catalog), others) if others else ():
                missing -= {
                    stream for stream in missing if pair and _are_of_one_stream(stream, (table, metadata), pair)
                }
    except Exception:  # a catalog may refuse to list
        return None
    return f"it has no other table of stream {min(missing)}, such as its dead-letter table" if missing else None


def _try_load(catalog: Catalog, name: str) -> tuple[str, TableMetadata] | None:
    try:
        return name, catalog.load_table(name).metadata
    except Exception:  # a table that cannot be loaded does not count
        return None


def _are_of_one_stream(stream: str, *tables: tuple[str, TableMetadata]) -> bool:
    """Return whether these tables have markers of one stream, and none of them belongs to another table of a name."""
    markers = [try_read_marker(metadata.properties, stream) for _, metadata in tables]
    known = [marker for marker in markers if marker is not None]
    uuids = {name: str(metadata.table_uuid) for name, metadata in tables}
    owned = [marker.own_table for marker in known if marker.own_table]
    is_one_source = len(known) == len(tables) and len({marker.source.cluster_id for marker in known}) == 1
    return is_one_source and all(uuids.get(own.name, own.uuid) == own.uuid for own in owned)


def check_no_other_name(catalog: Catalog, table: str, metadata: TableMetadata) -> None:
    name = find_other_name(catalog, table, location=metadata.location, uuid=str(metadata.table_uuid))
    if name is not None:
        raise SpecError(
            f"the catalog {catalog.name!r} already has the table in {metadata.location} under the name {name}. Under "
            "two names, commits under one name would be missing under the other. Nothing was registered. To change the "
            f"name to {table}, rename {name}"
        )
