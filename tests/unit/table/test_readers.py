"""The snippets for query engines open the same catalog, and contain no secret."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from frazil.cli.main import frazil
from frazil.errors import SpecError
from frazil.spark.jars import JAR_SETS, installed_variant
from frazil.table.catalogs import load_catalog, spark_properties
from frazil.table.reader_configuration import READERS, Reader, configuration

pytestmark = pytest.mark.usefixtures("unconfigured")

PACKAGES = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.54.1.0")
REST = {
    "type": "rest",
    "uri": "https://catalog.example/api",
    "warehouse": "lake",
    "credential": "me:hush",
    "scope": "PRINCIPAL_ROLE:ALL",
    "s3.endpoint": "http://store:9000",
    "s3.region": "eu-central-1",
    "s3.access-key-id": "hush",
    "s3.secret-access-key": "hush",
}
DATABASE = {
    "type": "sql",
    "uri": "postgresql+psycopg2://me:hu%73h@db:5433/catalog?sslmode=require&sslpassword=hush",
    "warehouse": "s3://bucket/lake",
}


def printed(reader: Reader, *arguments: str) -> str:
    found = CliRunner().invoke(frazil, ["catalog", *arguments, "--for", reader], catch_exceptions=False)
    assert found.exit_code == 0
    return found.output


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("properties", [REST, DATABASE], ids=["rest", "database"])
def test_no_secret_is_printed(reader: Reader, properties: dict[str, str]) -> None:
    text = configuration(reader, "lake", properties, PACKAGES)
    assert "hush" not in text
    assert "PYICEBERG_CATALOG__LAKE__" in text


@given(st.dictionaries(st.from_regex(r"[a-z0-9.\-]{1,20}", fullmatch=True), st.just("hush"), max_size=5))
def test_unknown_properties_are_treated_as_secrets(unknown: dict[str, str]) -> None:
    for key in ("warehouse", "prefix", "scope", "audience", "resource", "ref", "echo", "type", "uri"):
        unknown.pop(key, None)
    for reader in READERS:
        assert "hush" not in configuration(reader, "lake", {**unknown, "type": "rest", "uri": "http://c"}, PACKAGES)


def test_pyiceberg_opens_the_printed_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    load_catalog(None).create_namespace("city")
    exec(printed("pyiceberg"), {})
    assert capsys.readouterr().out == "[('city',)]\n"


def test_the_printed_configuration_names_secrets_as_pyiceberg_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__MY_LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__MY_LAKE__S3__SECRET_ACCESS_KEY", "hush")
    text = printed("pyiceberg", "my-lake")
    assert '"s3.secret-access-key": os.environ["PYICEBERG_CATALOG__MY_LAKE__S3__SECRET_ACCESS_KEY"]' in text
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["catalog"].properties["s3.secret-access-key"] == "hush"


def test_duckdb_reads_a_table_of_the_printed_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    catalog = load_catalog(None)
    catalog.create_namespace("city")
    rides = pa.table({"rider": ["ada", "bob"]})
    catalog.create_table("city.rides", rides.schema).append(rides)
    exec(printed("duckdb").replace("namespace.table", "city.rides"), {})
    assert " 2 " in capsys.readouterr().out


def test_spark_gets_the_properties_that_frazils_own_sessions_have() -> None:
    settings = dict(re.findall(r'\.config\("([^"]+)", "([^"]+)"\)', printed("spark")))
    assert settings.items() >= spark_properties(None).items()
    assert settings["spark.jars.packages"] == ",".join(JAR_SETS[installed_variant("spark")].coordinates)


def test_sparks_and_trinos_properties_of_a_database_hold_its_password_by_reference() -> None:
    password = "PYICEBERG_CATALOG__LAKE__JDBC__PASSWORD"
    spark = configuration("spark", "lake", DATABASE, PACKAGES)
    assert '.config("spark.sql.catalog.lake.uri", "jdbc:postgresql://db:5433/catalog?sslmode=require")' in spark
    assert f'.config("spark.sql.catalog.lake.jdbc.password", os.environ["{password}"])' in spark
    assert configuration("trino", "lake", DATABASE, PACKAGES).splitlines() == [
        "connector.name=iceberg",
        "iceberg.catalog.type=jdbc",
        "iceberg.jdbc-catalog.catalog-name=lake",
        "iceberg.jdbc-catalog.driver-class=org.postgresql.Driver",
        "iceberg.jdbc-catalog.connection-url=jdbc:postgresql://db:5433/catalog?sslmode=require",
        "iceberg.jdbc-catalog.connection-user=me",
        f"iceberg.jdbc-catalog.connection-password=${{ENV:{password}}}",
        "iceberg.jdbc-catalog.default-warehouse-dir=s3://bucket/lake",
        "fs.s3.enabled=true",
    ]


def test_trino_gets_a_rest_catalog_with_its_storage() -> None:
    assert configuration("trino", "lake", REST, PACKAGES).splitlines() == [
        "connector.name=iceberg",
        "iceberg.catalog.type=rest",
        "iceberg.rest-catalog.uri=https://catalog.example/api",
        "iceberg.rest-catalog.warehouse=lake",
        "iceberg.rest-catalog.oauth2.credential=${ENV:PYICEBERG_CATALOG__LAKE__CREDENTIAL}",
        "iceberg.rest-catalog.oauth2.scope=PRINCIPAL_ROLE:ALL",
        "iceberg.rest-catalog.security=OAUTH2",
        "fs.s3.enabled=true",
        "s3.endpoint=http://store:9000",
        "s3.region=eu-central-1",
        "s3.aws-access-key=${ENV:PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID}",
        "s3.aws-secret-key=${ENV:PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY}",
        "s3.path-style-access=true",
    ]


def test_a_reader_that_cannot_open_the_catalog_is_reported() -> None:
    found = CliRunner().invoke(frazil, ["catalog", "--for", "trino"])
    assert isinstance(found.exception, SpecError)
    assert "'default' is an SQLite file, which Trino cannot open" in str(found.exception)
    with pytest.raises(SpecError, match="'dynamodb', which Trino cannot open"):
        configuration("trino", "d", {"type": "dynamodb"}, PACKAGES)
