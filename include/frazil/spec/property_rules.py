"""Rules for values that a declaration passes to other software: properties, addresses, secrets and references."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from frazil.spec.addresses import FOLDER_PROPERTIES, find_location_problem, find_path_problem, find_servers_problem
from frazil.spec.formats import registry_of
from frazil.spec.references import find_reference_problem
from frazil.spec.values import Problem

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec

SET_BY_FRAZIL = {
    "bootstrap.servers": "write source.bootstrap-servers",
    "isolation.level": "frazil reads committed records only",
    "auto.offset.reset": "set the position of a new stream with source.start",
    "enable.partition.eof": "frazil uses it to find the end of an offset range",
    "group.id": "the table stores the offsets, and frazil joins no consumer group",
    "enable.auto.commit": "the table stores the offsets",
    "enable.auto.offset.store": "the table stores the offsets",
}
JAVA_ONLY = {
    "sasl.jaas.config": "write sasl.username and sasl.password",
    "sasl.login.callback.handler.class": "write sasl.oauthbearer.method and its properties",
    "security.providers": "leave it out",
    "key.deserializer": "leave it out: source.format defines how a record is read",
    "value.deserializer": "leave it out: source.format defines how a record is read",
    "ssl.truststore.location": "write ssl.ca.location, the path of a PEM file",
    "ssl.truststore.password": "leave it out: ssl.ca.location is a PEM file without a password",
    "ssl.truststore.type": "leave it out: ssl.ca.location is a PEM file",
    "ssl.keystore.type": "leave it out: ssl.keystore.location is a PKCS#12 file",
    "ssl.protocol": "leave it out",
    "fetch.max.wait.ms": "write fetch.wait.max.ms",
    "default.api.timeout.ms": "leave it out",
}
"""Properties of Kafka's Java client that librdkafka does not have, and what to write instead."""

_POSITIVE_PROPERTIES = re.compile(r"(write\.(delete\.)?target-file|commit\.manifest\.target)-size-bytes")
_INTEGER_PROPERTIES = re.compile(r"write\..*-(bytes|limit)|.*-(ms|versions-max|num-retries)|commit\..*-count-to-merge")
"""Table properties with an integer value, according to Iceberg's configuration page."""

PAGE_VERSION_PROPERTY = "write.parquet.page-version"
ENCODINGS_PROPERTY = "write.parquet.format-version"
"""Table property for the encodings' version: v2 in frazil's new tables. The page format is always v1."""
COMPRESSION_LEVELS = {
    **dict.fromkeys(("none", "uncompressed", "snappy", "lz4")),
    "gzip": (0, 9),
    "brotli": (0, 11),
    "zstd": (-131_072, 22),
}
"""The range of each codec's levels; None if the codec has no level, so that the property is ignored."""
_PARQUET_INTEGERS = re.compile(
    r"write\.parquet\.(row-group-size-bytes|row-group-limit|(page|dict)-size-bytes|page-row-limit)"
)
_METRICS_PROPERTIES = re.compile(r"write\.metadata\.metrics\.(default|column\..*)")
_METRICS_MODE = re.compile(r"none|counts|full|truncate\(0*[1-9]\d{0,8}\)", re.IGNORECASE)

FORMAT_3_READERS = (
    "only a new table gets version 3, which fewer engines read, and it cannot go back to version 2. Spark with Iceberg "
    "1.12 reads it; PyIceberg 0.12 and DuckDB 1.4 read it without variants; Amazon Athena does not; Trino was not tried"
)
_SECRET = re.compile(r"password|secret|passphrase|private[._-]key|key\.pem$|jaas|token$|access-key-id$", re.IGNORECASE)

_REFERENCES = re.compile(r"(\$\{(env:[A-Za-z_]\w*|airflow:[\w.-]+\.[\w-]+)\})+")
"""Matches a text that consists only of references without defaults."""


def is_secret(key: str) -> bool:
    return _SECRET.search(key) is not None


def find_consumer_property_problems(spec: StreamSpec) -> Iterator[Problem]:
    for key, value in spec.source.properties.items():
        if key in SET_BY_FRAZIL:
            yield Problem(f"source.properties.{key}", value, f"is set by frazil: {SET_BY_FRAZIL[key]}")
        elif key in JAVA_ONLY:
            message = f"is a property of Kafka's Java client, which librdkafka does not have; {JAVA_ONLY[key]}"
            yield Problem(f"source.properties.{key}", None, message)


def find_server_problems(spec: StreamSpec) -> Iterator[Problem]:
    text = spec.source.bootstrap_servers
    if "${" not in text and (message := find_servers_problem(text)):
        yield Problem("source.bootstrap-servers", None, message)


def find_secret_problems(spec: StreamSpec) -> Iterator[Problem]:
    for path, text in _referring_texts(spec):
        is_refused = path.removeprefix("source.properties.") in JAVA_ONLY
        if is_secret(path) and not is_refused and not _REFERENCES.fullmatch(text):
            message = "is a secret, which must not be in the file; write ${env:NAME} or ${airflow:connection.password}"
            yield Problem(path, None, message)


def _referring_texts(spec: StreamSpec) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each value that may refer to a secret."""
    yield from ((f"source.properties.{key}", value) for key, value in spec.source.properties.items())
    yield from ((f"resources.spark.{key}", value) for key, value in spec.resources.spark.items())
    if registry := registry_of(spec.source.format):
        parts = {"url": registry.url, "username": registry.username, "password": registry.password}
        parts |= {"token": registry.token, **{f"properties.{key}": text for key, text in registry.properties.items()}}
        yield from ((f"source.format.registry.{name}", text) for name, text in parts.items() if text is not None)
    if spec.sensitive and spec.sensitive.secret is not None:
        yield "sensitive.secret", spec.sensitive.secret


def find_reference_problems(spec: StreamSpec) -> Iterator[Problem]:
    texts = {"source.bootstrap-servers": spec.source.bootstrap_servers, **dict(_referring_texts(spec))}
    for path, text in texts.items():
        if message := find_reference_problem(text):
            yield Problem(path, None, message)
    if spec.table.location and "${" in spec.table.location:
        message = "contains a reference, but references are not resolved here; write the location itself"
        yield Problem("table.location", spec.table.location, message)
    elif spec.table.location and (problem := find_location_problem(spec.table.location)):
        yield Problem("table.location", spec.table.location, problem)


def find_writing_property_problem(key: str, properties: Mapping[str, str]) -> str | None:
    """Return why files cannot be written with a table property's value; None if they can."""
    value = properties[key]
    if key == ENCODINGS_PROPERTY and value not in ("v1", "v2"):
        return "is not v1 or v2"
    if _PARQUET_INTEGERS.fullmatch(key):
        return find_integer_problem(value, 1, 2**31 - 1)
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    if key == "write.parquet.compression-codec" and codec not in COMPRESSION_LEVELS:
        return "is not a codec; use zstd"
    if key == "write.parquet.compression-level" and (levels := COMPRESSION_LEVELS.get(codec)):
        problem = find_integer_problem(value, *levels)
        return problem and f"{problem}, as {codec} requires"
    if _METRICS_PROPERTIES.fullmatch(key) and not _METRICS_MODE.fullmatch(value.strip()):
        return "is not a metrics mode; use none, counts, full or truncate(16)"
    return None


def find_integer_problem(value: str, minimum: int, maximum: int = 2**63 - 1) -> str | None:
    if re.fullmatch(r"-?\d{1,20}", value) and minimum <= int(value) <= maximum:
        return None
    return f"is not an integer from {minimum:,} to {maximum:,}"


def find_table_property_problems(spec: StreamSpec) -> Iterator[Problem]:
    for key, value in spec.table.properties.items():
        path = f"table.properties.{key}"
        is_folder = key in FOLDER_PROPERTIES
        problem = find_path_problem(value) if is_folder else find_writing_property_problem(key, spec.table.properties)
        if problem is None and _INTEGER_PROPERTIES.fullmatch(key):
            problem = find_integer_problem(value, 1 if _POSITIVE_PROPERTIES.fullmatch(key) else 0)
        if is_secret(key):
            message = "is a secret, which everyone who reads the table could see; set it in the catalog's configuration"
            yield Problem(path, None, message)
        elif key.startswith("frazil."):
            yield Problem(path, value, "begins with frazil., which is reserved for frazil; remove it")
        elif key == "format-version" and value not in ("2", "3"):
            yield Problem(path, value, "is not supported; frazil writes format versions 2 and 3")
        elif key == "write.format.default" and value.lower() != "parquet":
            yield Problem(path, value, "is not supported; frazil writes parquet, so leave it out")
        elif key == PAGE_VERSION_PROPERTY and value not in ("v1", "v2"):
            yield Problem(path, value, "is not v1 or v2")
        elif problem:
            yield Problem(path, value, problem)


def find_page_version_problems(spec: StreamSpec) -> Iterator[Problem]:
    """Find boolean columns in v2 data pages, which Spark's vectorised reader cannot read (Iceberg 1.12)."""
    if spec.table.properties.get(PAGE_VERSION_PROPERTY) != "v2":
        return
    path = f"table.properties.{PAGE_VERSION_PROPERTY}"
    reason = "Spark's vectorised reader cannot read booleans in v2 pages; use v1"
    if booleans := [column.name for column in spec.columns if column.type == "boolean"]:
        yield Problem(path, "v2", f"cannot be used with {', '.join(booleans)}: {reason}")
    elif spec.evolution.mode != "off":
        yield Problem(path, "v2", f"cannot be used with evolution, which may add a boolean: {reason}")
