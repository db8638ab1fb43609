"""Generates an engine's configuration for reading a catalog's tables, ready to paste. Pure. Values that may be secret
become references to PyIceberg's environment variables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args
from urllib.parse import parse_qs, urlsplit

from sqlalchemy import make_url

from frazil.errors import SpecError
from frazil.table.spark_catalog import ATOMIC_PROPERTY, catalog_type, to_spark_properties

Reader = Literal["spark", "trino", "duckdb", "pyiceberg"]
READERS: tuple[Reader, ...] = get_args(Reader)

_PRINTED_PROPERTIES = frozenset(
    {
        *("type", "uri", "warehouse", "prefix", "scope", "audience", "resource", "oauth2-server-uri", "ref"),
        *("py-io-impl", "py-catalog-impl", "echo", "pool_pre_ping", "schema_version", "init_catalog_tables"),
        *("rest.sigv4-enabled", "rest.signing-region", "rest.signing-name", "header.X-Iceberg-Access-Delegation"),
        *("s3.endpoint", "s3.region", "s3.force-virtual-addressing", "client.region", "s3.role-arn"),
        ATOMIC_PROPERTY,
        *("glue.region", "glue.endpoint", "glue.id", "hive.hive2-compatible", "hive.kerberos-authentication"),
        *("adls.account-name", "adls.account-host", "gcs.project-id", "gcs.default-bucket-location"),
    }
)
"""Properties whose values are printed, unless a URL has a password or unknown parameters."""
_PRINTED_QUERY_PARAMETERS = frozenset({"timeout", "sslmode", "sslrootcert", "connect_timeout", "application_name"})
"""Parameters of a database URL that are printed."""
_REFERENCE = re.compile(r"\$\{(\w+)\}")

_TRINO_S3 = {
    **{key: key for key in ("s3.endpoint", "s3.region")},
    "client.region": "s3.region",
    "s3.access-key-id": "s3.aws-access-key",
    "s3.secret-access-key": "s3.aws-secret-key",
}
_TRINO_REST = {
    **{key: key for key in ("uri", "warehouse", "prefix")},
    **{key: f"oauth2.{key}" for key in ("credential", "token", "scope")},
    "oauth2-server-uri": "oauth2.server-uri",
}
_TRINO_GLUE = {
    **dict.fromkeys(("glue.region", "client.region"), "region"),
    "glue.endpoint": "endpoint-url",
    "glue.id": "catalogid",
}


def configuration(reader: Reader, catalog: str, properties: Mapping[str, str], packages: Sequence[str]) -> str:
    """Return the text to paste. `packages` are Maven coordinates. Raises SpecError if it is impossible."""
    if reader == "spark":
        return _spark_snippet(catalog, properties, packages)
    if reader == "trino":
        return _trino_properties(catalog, properties)
    usage = _DUCKDB_LINES if reader == "duckdb" else "\nprint(catalog.list_namespaces())"
    return _pyiceberg_snippet(catalog, properties) + usage


_DUCKDB_LINES = """
table = catalog.load_table("namespace.table")
# Reads only the selected rows and columns, into memory.
connection = table.scan(row_filter="true", selected_fields=("*",)).to_duckdb("t")
print(connection.sql("SELECT count(*) FROM t"))"""


def _spark_snippet(catalog: str, properties: Mapping[str, str], packages: Sequence[str]) -> str:
    runtime, sqlite, *other_packages = packages
    configured = to_spark_properties(catalog, _replace_secrets(catalog, properties, database_password=True))
    beneath = f"spark.sql.catalog.{catalog}."
    on_sqlite = configured.get(f"{beneath}uri", "").startswith("jdbc:sqlite:")
    jars = [runtime, *([sqlite] if on_sqlite else []), *other_packages]
    settings = {
        "spark.jars.packages": ",".join(jars),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        **configured,
    }
    lines = "\n".join(f'    .config("{key}", {_python_literal(value)})' for key, value in settings.items())
    return f"""{_imports(settings.values())}from pyspark.sql import SparkSession

spark = (
    SparkSession.builder
{lines}
    .getOrCreate()
)
spark.sql("SHOW NAMESPACES IN {catalog}").show()"""


def _pyiceberg_snippet(catalog: str, properties: Mapping[str, str]) -> str:
    safe = _replace_secrets(catalog, properties, database_password=False)
    lines = "\n".join(f'        "{key}": {_python_literal(value)},' for key, value in sorted(safe.items()))
    return f'''{_imports(safe.values())}from pyiceberg.catalog import load_catalog

catalog = load_catalog(
    "{catalog}",
    **{{
{lines}
    }},
)'''


def _trino_properties(catalog: str, properties: Mapping[str, str]) -> str:
    safe = _replace_secrets(catalog, properties, database_password=True)
    match kind := catalog_type(safe):
        case "rest":
            lines = _rename_keys(safe, _TRINO_REST, "iceberg.rest-catalog.")
            if {"credential", "token"} & safe.keys():
                lines["iceberg.rest-catalog.security"] = "OAUTH2"
            if not any(key.startswith("s3.") and key.endswith("key") for key in safe):
                lines["iceberg.rest-catalog.vended-credentials-enabled"] = "true"
        case "glue":
            lines = _rename_keys(safe, _TRINO_GLUE, "hive.metastore.glue.")
        case "hive":
            lines = {"hive.metastore.uri": safe["uri"]}
        case "sql":
            lines = _trino_jdbc(catalog, safe)
        case _:
            raise SpecError(f"the catalog {catalog!r} is of type {kind!r}, which Trino cannot open")
    trino_type = {"sql": "jdbc", "hive": "hive_metastore"}.get(kind, kind)
    lines = {"connector.name": "iceberg", "iceberg.catalog.type": trino_type, **lines, **_trino_s3(safe)}
    escaped = {key: _REFERENCE.sub(r"${ENV:\1}", value) for key, value in lines.items()}
    return "\n".join(f"{key}={value}" for key, value in escaped.items())


def _trino_jdbc(catalog: str, properties: Mapping[str, str]) -> dict[str, str]:
    jdbc = to_spark_properties(catalog, properties)
    beneath = f"spark.sql.catalog.{catalog}."
    uri = jdbc[f"{beneath}uri"]
    if uri.startswith("jdbc:sqlite:"):
        raise SpecError(
            f"the catalog {catalog!r} is an SQLite file, which Trino cannot open; use a REST catalog or PostgreSQL"
        )
    lines = {"catalog-name": catalog, "driver-class": "org.postgresql.Driver", "connection-url": uri}
    for key, name in {"jdbc.user": "user", "jdbc.password": "password"}.items():
        if value := jdbc.get(beneath + key):
            lines[f"connection-{name}"] = value
    lines["default-warehouse-dir"] = properties.get("warehouse", "")
    return {f"iceberg.jdbc-catalog.{key}": value for key, value in lines.items()}


def _trino_s3(properties: Mapping[str, str]) -> dict[str, str]:
    if not any(key.startswith("s3.") for key in properties) and not properties.get("warehouse", "").startswith("s3"):
        return {}
    lines = {"fs.s3.enabled": "true", **_rename_keys(properties, _TRINO_S3, "")}
    if "s3.endpoint" in properties and properties.get("s3.force-virtual-addressing", "").lower() != "true":
        lines["s3.path-style-access"] = "true"
    return lines


def _rename_keys(properties: Mapping[str, str], names: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {prefix + name: properties[key] for key, name in names.items() if key in properties}


def _replace_secrets(catalog: str, properties: Mapping[str, str], *, database_password: bool) -> dict[str, str]:
    """Replace secrets by `${VARIABLE}`. With `database_password`, replaces only the password in a database URL."""
    replaced = {
        key: value if _is_harmless(key, value) else _variable_reference(catalog, key)
        for key, value in properties.items()
    }
    uri = properties.get("uri", "")
    if database_password and replaced.get("uri") != uri and catalog_type(properties) == "sql":
        url = make_url(uri)
        harmless = {key: value for key, value in url.query.items() if key in _PRINTED_QUERY_PARAMETERS}
        password = _variable_reference(catalog, "jdbc.password") if url.password else None
        replaced["uri"] = url.set(password=password, query=harmless).render_as_string(hide_password=False)
    return replaced


def _is_harmless(key: str, value: str) -> bool:
    if key not in _PRINTED_PROPERTIES:
        return False
    if "://" not in value:
        return True
    url = urlsplit(value)
    return url.password is None and parse_qs(url.query, keep_blank_values=True).keys() <= _PRINTED_QUERY_PARAMETERS


def _variable_reference(catalog: str, key: str) -> str:
    """Return `${VARIABLE}` for PyIceberg's variable of `key`, where `__` is a dot and `_` a hyphen."""
    name = f"PYICEBERG_CATALOG__{catalog}__{key.replace('.', '__')}".upper()
    return f"${{{re.sub(r'[^A-Z0-9_]', '_', name)}}}"


def _python_literal(value: str) -> str:
    match = _REFERENCE.fullmatch(value)
    return f'os.environ["{match[1]}"]' if match else json.dumps(value)


def _imports(values: Iterable[str]) -> str:
    return "import os\n\n" if any(map(_REFERENCE.fullmatch, values)) else ""
