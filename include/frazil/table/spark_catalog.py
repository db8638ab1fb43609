"""Translates a catalog's PyIceberg properties to the properties of Iceberg's Spark runtime. Pure.

A key without a translation stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from sqlalchemy import make_url

from frazil.errors import SpecError

SQLITE_BUSY_MS = 30_000
"""How long (ms) Spark waits for another process that writes."""
ATOMIC_PROPERTY = "frazil.atomic"
"""A REST catalog's property, read by frazil, with the server's name: one of `atomic_catalogs.ATOMIC_SERVERS`."""

_JAVA_NAMES = {
    "s3.region": "client.region",
    "glue.region": "client.region",
    "glue.endpoint": "glue.endpoint",
    "glue.id": "glue.id",
    "client.access-key-id": "rest.access-key-id",
    "client.secret-access-key": "rest.secret-access-key",
    "client.session-token": "rest.session-token",
    "adls.account-name": "adls.auth.shared-key.account.name",
    "adls.account-key": "adls.auth.shared-key.account.key",
}
"""Names in Iceberg's Java library (AwsClientProperties, AwsProperties, AzureProperties), by PyIceberg's names."""

_FILE_IOS = (
    ("s3", "s3.", "aws.s3.S3FileIO"),
    (("gs:", "gcs:"), "gcs.", "gcp.gcs.GCSFileIO"),
    (("abfs", "wasb"), "adls.", "azure.adlsv2.ADLSFileIO"),
)
"""Schemes of locations, the prefix of properties, and the Java class, for each kind of object store."""

_PYTHON_ONLY = frozenset(
    {
        *("type", "uri", "py-io-impl", "py-catalog-impl", ATOMIC_PROPERTY),
        *("echo", "pool_pre_ping", "schema_version", "init_catalog_tables"),
    }
)
"""Properties that are not passed to Spark under the same name."""


def to_spark_properties(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the catalog's `spark.sql.catalog.<name>` and its subkeys. Raises SpecError."""
    kind = catalog_type(properties)
    translated = {_JAVA_NAMES.get(key, key): value for key, value in properties.items() if key not in _PYTHON_ONLY}
    if virtual := translated.pop("s3.force-virtual-addressing", None):
        translated["s3.path-style-access"] = "false" if virtual.lower() == "true" else "true"
    elif "s3.endpoint" in translated:
        # At a custom endpoint PyIceberg addresses buckets by path, Java by host name.
        translated.setdefault("s3.path-style-access", "true")
    if kind == "sql":
        translated |= _to_jdbc_properties(name, properties["uri"])
    elif kind in {"rest", "hive"}:
        translated |= {"type": kind, "uri": properties["uri"]}
    elif kind == "glue":
        translated |= {"type": "glue"}
    else:
        raise SpecError(
            f"the catalog {name!r} is of type {kind!r}, which Spark cannot open; use sql, rest, glue or hive"
        )
    if file_io := _find_file_io(properties):
        translated.setdefault("io-impl", f"org.apache.iceberg.{file_io}")
    prefix = f"spark.sql.catalog.{name}"
    return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {
        f"{prefix}.{key}": value for key, value in sorted(translated.items())
    }


def needed_jar_sets(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the jar sets (`frazil.spark.jars`) that Spark needs to open the catalog."""
    on_postgres = catalog_type(properties) == "sql" and properties.get("uri", "").startswith("postgresql")
    is_signed = properties.get("rest.sigv4-enabled", "").lower() == "true"
    on_aws = _find_file_io(properties) == _FILE_IOS[0][-1] or catalog_type(properties) == "glue" or is_signed
    return ("spark", *(["postgres"] if on_postgres else []), *(["s3"] if on_aws else []))


def catalog_type(properties: Mapping[str, str]) -> str:
    """Return a catalog's declared type, or else the type that PyIceberg infers from the URI."""
    uri = properties.get("uri", "")
    kinds = {"http": "rest", "thrift": "hive", "sqlite": "sql", "postgresql": "sql"}
    inferred = next((kind for scheme, kind in kinds.items() if uri.startswith(scheme)), uri)
    return properties.get("type") or inferred


def _to_jdbc_properties(name: str, uri: str) -> dict[str, str]:
    url = make_url(uri)
    common = {"type": "jdbc", "jdbc.schema-version": "V1"}  # the schema that PyIceberg creates, with views
    if url.get_backend_name() == "sqlite":
        # Iceberg 1.10 never closes the query that looks for its tables. SQLite would keep that query's snapshot: Spark
        # would see no later commits, and could not commit after one. PyIceberg has already created the tables.
        properties = {"jdbc.init-catalog-tables": "false"}
        return common | properties | {"uri": f"jdbc:sqlite:{url.database}?busy_timeout={SQLITE_BUSY_MS}"}
    if url.get_backend_name() != "postgresql":
        raise SpecError(
            f"the catalog {name!r} is in {url.get_backend_name()}, which frazil cannot open from Spark: use PostgreSQL "
            "or SQLite"
        )
    query = f"?{urlencode(dict(url.query), doseq=True)}" if url.query else ""
    port = f":{url.port}" if url.port else ""
    jdbc = common | {"uri": f"jdbc:postgresql://{url.host}{port}/{url.database}{query}"}
    if url.username:
        jdbc["jdbc.user"] = url.username
    if url.password:
        jdbc["jdbc.password"] = str(url.password)
    return jdbc


def _find_file_io(properties: Mapping[str, str]) -> str | None:
    """Return the Java class for the storage that the properties name; None if Hadoop's file systems suffice."""
    warehouse = properties.get("warehouse", "")
    for schemes, prefix, file_io in _FILE_IOS:
        if warehouse.startswith(schemes) or any(key.startswith(prefix) for key in properties):
            return file_io
    return None
