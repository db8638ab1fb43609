"""Catalogs by PyIceberg's conventions, the embedded one by default, and Spark's properties for them."""

from __future__ import annotations

import gc
import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from weakref import WeakValueDictionary

import pytest
from botocore.exceptions import (
    CredentialRetrievalError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    ProfileNotFound,
)
from hive_metastore import ThriftHiveMetastore
from hive_metastore.ttypes import MetaException
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    NoSuchTableError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy.exc import OperationalError
from thrift.server.TServer import TSimpleServer
from thrift.transport.TSocket import TServerSocket

from frazil.errors import AccessDenied, CommitUnavailable, FrazilError, SpecError
from frazil.spark import jars
from frazil.table import catalogs
from frazil.table.catalogs import (
    CatalogConfig,
    _open,
    catalog_config,
    keep_catalogs,
    load_catalog,
    open_existing_catalog,
    spark_properties,
    translate_catalog_errors,
)
from frazil.table.parallel import run_in_parallel
from frazil.table.spark_catalog import needed_jar_sets, to_spark_properties
from frazil.table.unresponsive import SLOW_ERROR_S

pytestmark = pytest.mark.usefixtures("unconfigured")


def test_the_default_catalog_is_embedded_where_nothing_is_configured(unconfigured: Path) -> None:
    catalog = load_catalog(None)
    catalog.create_namespace("demo")
    table = catalog.create_table("demo.t", Schema(NestedField(1, "x", LongType())))
    assert catalog.name == "default"
    assert table.location() == f"file://{unconfigured}/warehouse/demo/t"
    with sqlite3.connect(unconfigured / "catalog.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_processes_wait_ten_seconds_for_each_other_which_a_command_waits_for() -> None:
    engine = load_catalog("default").engine  # type: ignore[attr-defined]
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 10_000
    assert SLOW_ERROR_S <= 10 < catalogs.ANSWER_TIMEOUT_S


def test_a_locked_database_is_reported_after_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "SQLITE_BUSY_SECONDS", 0.1)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    load_catalog("lake").create_namespace("city")
    monkeypatch.setattr(SqlCatalog, "create_tables", lambda *_: pytest.fail("the tables exist"))
    connection = sqlite3.connect(tmp_path / "lake.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(CommitUnavailable, match=r"'lake' cannot be used: database is locked\. End the program"):
            open_existing_catalog("lake")
    finally:
        connection.close()


def test_a_configured_default_replaces_the_embedded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", f"sqlite:///{tmp_path}/mine.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__S3__ACCESS_KEY_ID", "key")
    config = catalog_config(None)
    assert not config.embedded
    assert config.properties == {"uri": f"sqlite:///{tmp_path}/mine.db?timeout=10", "s3.access-key-id": "key"}
    load_catalog(None)
    assert (tmp_path / "mine.db").exists()


@pytest.mark.parametrize("uri", ["sqlite:///file:mine.db?mode=rwc&uri=true", "sqlite:///mine.db"])
def test_a_catalog_in_a_relative_file_or_uri_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", uri)
    load_catalog("prod").create_namespace("city")
    assert open_existing_catalog("prod").list_namespaces() == [("city",)]


def test_a_named_catalog_comes_from_the_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"default-catalog: lake\ncatalog:\n  lake:\n    type: sql\n    uri: sqlite:///{tmp_path}/lake.db\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    assert load_catalog(None).name == "lake"
    assert load_catalog("lake").name == "lake"


def test_an_unconfigured_catalog_is_reported_with_how_to_configure_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "http://127.0.0.1:1")
    with pytest.raises(
        SpecError, match=r"'my-lake' is not configured \(configured: lake\); set PYICEBERG_CATALOG__MY_LAKE__URI"
    ):
        load_catalog("my-lake")
    monkeypatch.setenv("PYICEBERG_DEFAULT_CATALOG", "gone")
    with pytest.raises(SpecError, match="'gone' is not configured"):
        load_catalog(None)


def test_a_misconfigured_catalog_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest")
    with pytest.raises(SpecError, match="'lake' is misconfigured: URI missing"):
        load_catalog("lake")


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"type": "nope"}, "SpecError: the catalog 'lake' is misconfigured: 'nope' is not a valid CatalogType"),
        ({"uri": "nonsense", "type": "sql"}, "SpecError: .* Could not parse SQLAlchemy URL"),
        ({"uri": "foo+bar://h/d", "type": "sql"}, "SpecError: .* Can't load plugin: sqlalchemy.dialects:foo.bar"),
        ({"uri": "localhost", "type": "rest"}, "SpecError: .* Invalid URL"),
        ({"uri": "nonsense", "type": "hive"}, r"SpecError: .* its uri is not thrift://host:port"),
        ({"py-catalog-impl": "a.b"}, "SpecError: .* Could not initialize Catalog: a.b"),
    ],
)
def test_each_mistake_in_a_configuration_is_one_sentence(properties: dict[str, str], said: str) -> None:
    with pytest.raises(FrazilError) as raised:
        _open(CatalogConfig("lake", properties))
    text = f"{type(raised.value).__name__}: {raised.value}"
    assert re.match(said, text)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (MetadataRetrievalError(error_msg="timed out"), CommitUnavailable),
        (CredentialRetrievalError(provider="iam-role", error_msg="timed out"), CommitUnavailable),
        (NoCredentialsError(), CommitUnavailable),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), CommitUnavailable),
        (ProfileNotFound(profile="nobody"), SpecError),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_temporary_lack_of_credentials_or_network_does_not_end_a_writer_permanently(
    error: Exception, meant: type[FrazilError]
) -> None:
    with pytest.raises(meant, match="the catalog 'lake'"), translate_catalog_errors("lake"):
        raise error


@pytest.mark.parametrize("said", ["disk I/O error", "database or disk is full"])
def test_sqlites_error_about_a_full_disk_names_the_disk_to_check(said: str) -> None:
    with (
        pytest.raises(CommitUnavailable, match=f"{said}. Check the free space on its disk"),
        translate_catalog_errors("lake"),
    ):
        raise OperationalError("commit", None, sqlite3.OperationalError(said))


def test_a_glue_catalog_without_region_or_an_unreachable_metastore_is_reported_at_first_use() -> None:
    with pytest.raises(SpecError, match="'lake' is misconfigured: You must specify a region"):
        _first_use({"type": "glue"})
    with pytest.raises(CommitUnavailable, match="the metastore of the catalog 'lake' cannot be reached"):
        _first_use({"type": "hive", "uri": "thrift://127.0.0.1:1"})


def test_a_metastore_of_hive_4_is_refused_because_it_has_no_method_to_load_a_table() -> None:
    processor = ThriftHiveMetastore.Processor(None)
    del processor._processMap["get_table"]
    socket = TServerSocket("127.0.0.1", 0)
    socket.listen()
    socket.listen = lambda: None  # the server would listen on another port
    Thread(target=TSimpleServer(processor, socket).serve, daemon=True).start()
    uri = f"thrift://127.0.0.1:{socket.handle.getsockname()[1]}"
    catalog = _open(CatalogConfig("lake", {"type": "hive", "uri": uri}))
    with (
        pytest.raises(SpecError, match=r"the metastore of the catalog 'lake' .*get_table.*Hive 2 or 3"),
        translate_catalog_errors("lake"),
    ):
        catalog.load_table("db.events")


def test_a_metastore_of_hive_2_is_refused_with_the_setting_that_it_needs() -> None:
    refusal = "type expected at the position 0 of 'timestamp with local time zone'"  # as Hive 2.3.10 says it
    with (
        pytest.raises(SpecError, match=r"the metastore of the catalog 'lake' .*hive.hive2-compatible: true"),
        translate_catalog_errors("lake"),
    ):
        raise MetaException(refusal)


def test_a_hive_metastore_error_passes_context_managers_unchanged() -> None:
    _open(CatalogConfig("lake", {"type": "hive", "uri": "thrift://127.0.0.1:1"}))

    @contextmanager
    def passed() -> Iterator[None]:
        yield

    with pytest.raises(MetaException, match="the disk is full"), passed():
        raise MetaException("the disk is full")


def _first_use(properties: dict[str, str]) -> None:
    with translate_catalog_errors("lake"):
        _open(CatalogConfig("lake", properties)).list_namespaces()


GCS_IO = "org.apache.iceberg.gcp.gcs.GCSFileIO"
WITHOUT_PACKAGES = """
import importlib.util, sys
from frazil.errors import MissingExtra
from frazil.table.catalogs import CatalogConfig, _open

ABSENT = {"adlfs", "boto3", "gcsfs", "psycopg2", "s3fs", "thrift"}
find_spec = importlib.util.find_spec

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name}", name=name)

sys.meta_path.insert(0, Absent())
sys.modules["frazil.extras"].find_spec = lambda name: None if name in ABSENT else find_spec(name)
for properties in (
    {"type": "in-memory", "warehouse": "s3://b/w"},
    {"type": "in-memory", "warehouse": "gs://b/w"},
    {"type": "in-memory", "warehouse": "abfss://c@a.dfs.core.windows.net/w"},
    {"type": "glue"},
    {"type": "hive", "uri": "thrift://127.0.0.1:1"},
    {"type": "sql", "uri": "postgresql+psycopg2://h/d"},
    {"type": "rest", "uri": "http://127.0.0.1:1", "rest.sigv4-enabled": "true"},
):
    try:
        _open(CatalogConfig("lake", properties))
    except MissingExtra as error:
        print(str(error).partition("Install ")[2])
"""


def test_a_missing_package_is_reported_with_its_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PACKAGES], capture_output=True, text=True, check=False)
    named = [line.partition(":")[0] for line in done.stdout.splitlines()]
    wanted = ["s3", "gcs", "adls", "glue", "hive", "postgres", "s3"]
    assert named == [f"frazil[{extra}]" for extra in wanted], done.stderr


def test_a_catalog_that_cannot_be_reached_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "http://127.0.0.1:1")
    with pytest.raises(CommitUnavailable, match="'lake' cannot be reached"):
        load_catalog("lake")


def test_a_database_that_cannot_be_opened_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/nowhere/lake.db")
    with pytest.raises(CommitUnavailable, match="unable to open database file"):
        load_catalog("lake")


@pytest.mark.parametrize("refusal", [UnauthorizedError("no"), ForbiddenError("no"), PermissionError("no")])
def test_a_catalog_refusal_is_access_denied(refusal: Exception) -> None:
    with pytest.raises(AccessDenied, match="'lake'"), translate_catalog_errors("lake"):
        raise refusal


def test_credentials_that_expired_may_be_tried_again() -> None:
    with pytest.raises(CommitUnavailable, match="expired"), translate_catalog_errors("lake"):
        raise AuthorizationExpiredError("419")


def test_a_catalog_outage_is_not_reported_as_a_refusal_and_other_errors_stay_unchanged() -> None:
    with pytest.raises(CommitUnavailable), translate_catalog_errors("lake"):
        raise ServiceUnavailableError("later")
    with pytest.raises(NoSuchTableError), translate_catalog_errors("lake"):
        raise NoSuchTableError("t")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_an_unwritable_frazil_home_raises_access_denied(unconfigured: Path) -> None:
    unconfigured.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(AccessDenied):
        load_catalog(None)


def test_spark_opens_the_embedded_catalog_by_the_same_file(unconfigured: Path) -> None:
    assert spark_properties(None) == {
        "spark.sql.catalog.default": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.default.type": "jdbc",
        "spark.sql.catalog.default.uri": f"jdbc:sqlite:{unconfigured}/catalog.db?busy_timeout=30000",
        "spark.sql.catalog.default.jdbc.schema-version": "V1",
        "spark.sql.catalog.default.jdbc.init-catalog-tables": "false",
        "spark.sql.catalog.default.warehouse": f"file://{unconfigured}/warehouse",
    }


def _beneath(name: str, properties: dict[str, str]) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}."
    return {
        key.removeprefix(prefix): v
        for key, v in to_spark_properties(name, properties).items()
        if key.startswith(prefix)
    }


def test_spark_gets_a_postgresql_catalog_with_its_password_in_a_separate_property() -> None:
    uri = "postgresql+psycopg2://me:p%40ss@db:5433/cat?sslmode=require"
    assert _beneath("pg", {"type": "sql", "uri": uri, "warehouse": "/w"}) == {
        "type": "jdbc",
        "uri": "jdbc:postgresql://db:5433/cat?sslmode=require",
        "jdbc.user": "me",
        "jdbc.password": "p@ss",
        "jdbc.schema-version": "V1",
        "warehouse": "/w",
    }


def test_spark_gets_a_rest_catalog_with_its_storage_keys() -> None:
    properties = {
        "type": "rest",
        "uri": "http://127.0.0.1:1",
        "warehouse": "s3://bucket/",
        "rest.sigv4-enabled": "true",
        "s3.endpoint": "http://127.0.0.1:2",
        "s3.region": "eu-central-1",
        "s3.access-key-id": "key",
        "client.access-key-id": "key",
    }
    assert _beneath("lake", properties) == {
        "type": "rest",
        "uri": "http://127.0.0.1:1",
        "warehouse": "s3://bucket/",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "rest.sigv4-enabled": "true",
        "rest.access-key-id": "key",
        "s3.endpoint": "http://127.0.0.1:2",
        "s3.path-style-access": "true",
        "s3.access-key-id": "key",
        "client.region": "eu-central-1",
    }


@pytest.mark.parametrize(
    ("properties", "sets"),
    [
        ({"type": "sql", "uri": "sqlite:///c.db", "warehouse": "/w"}, ("spark",)),
        ({"uri": "postgresql://db/c", "warehouse": "/w"}, ("spark", "postgres")),
        ({"type": "sql", "uri": "postgresql+psycopg2://db/c", "warehouse": "s3://b/"}, ("spark", "postgres", "s3")),
        ({"type": "rest", "uri": "http://c"}, ("spark",)),
        ({"type": "rest", "uri": "http://c", "s3.endpoint": "http://s"}, ("spark", "s3")),
        ({"type": "rest", "uri": "http://c", "rest.sigv4-enabled": "True"}, ("spark", "s3")),
        ({"type": "glue", "warehouse": "s3://b/"}, ("spark", "s3")),
        ({"type": "hive", "uri": "thrift://h:9083", "warehouse": "hdfs://h/w"}, ("spark",)),
    ],
)
def test_spark_gets_the_jars_that_a_catalog_needs_and_no_others(
    properties: dict[str, str], sets: tuple[str, ...]
) -> None:
    assert needed_jar_sets(properties) == sets
    assert set(sets) <= set(jars.JAR_SETS)


def test_spark_opens_files_in_gcs_and_adls_with_iceberg_s_own_classes() -> None:
    assert _beneath("g", {"uri": "thrift://h:9083", "warehouse": "gs://b/"})["io-impl"] == GCS_IO
    assert _beneath("g", {"uri": "http://c", "gcs.project-id": "p"})["io-impl"] == GCS_IO
    given = {"uri": "thrift://h:9083", "adls.account-name": "a", "adls.account-key": "k"}
    found = _beneath("a", given | {"warehouse": "abfss://c@a.dfs.core.windows.net/"})
    assert found["io-impl"] == "org.apache.iceberg.azure.adlsv2.ADLSFileIO"
    shared_key = "adls.auth.shared-key.account"
    assert (found[f"{shared_key}.name"], found[f"{shared_key}.key"]) == ("a", "k")


def test_spark_gets_glue_and_hive_catalogs_and_other_kinds_are_refused() -> None:
    assert _beneath("g", {"type": "glue", "glue.region": "eu"}) == {"type": "glue", "client.region": "eu"}
    assert _beneath("h", {"uri": "thrift://h:9083"}) == {"type": "hive", "uri": "thrift://h:9083"}
    with pytest.raises(SpecError, match="'dynamodb', which Spark cannot open"):
        to_spark_properties("d", {"type": "dynamodb"})
    with pytest.raises(SpecError, match="mysql"):
        to_spark_properties("m", {"type": "sql", "uri": "mysql://h/d"})


def test_a_database_that_no_catalog_uses_keeps_no_connections(
    frazil_home: Path,  # noqa: ARG001 - it sets the environment
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogs, "_engines", WeakValueDictionary())
    first, second = load_catalog(None), load_catalog(None)
    assert first.engine is second.engine  # type: ignore[attr-defined]
    assert len(catalogs._engines or ()) == 1
    del first, second
    gc.collect()
    assert not catalogs._engines


def test_a_cached_catalog_is_reopened_only_after_some_seconds(monkeypatch: pytest.MonkeyPatch):
    load_catalog(None)
    with keep_catalogs():
        first = open_existing_catalog(None)
        assert open_existing_catalog(None) is first
        monkeypatch.setattr(catalogs, "CATALOG_CACHE_S", 0.0)
        assert open_existing_catalog(None) is not first
    assert open_existing_catalog(None) is not open_existing_catalog(None)


def test_parallel_reads_open_a_catalog_once_in_each_thread() -> None:
    load_catalog(None)
    opened = run_in_parallel(lambda _: (threading.get_ident(), open_existing_catalog(None)), range(20), max_threads=2)
    others = [item for item in opened if item[0] != threading.get_ident()]
    assert len(others) == 19
    assert len(set(others)) == len({thread for thread, _ in others})
