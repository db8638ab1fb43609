"""Streams from YAML: valid declarations, and the error message for each mistake."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from frazil.errors import SpecError
from frazil.spec.load import find_stream, load_stream
from frazil.spec.model import StreamSpec
from frazil.stream.throttle import MetadataBounds
from tests.strict_streams import load_streams
from tests.unit.spec.conftest import SMALLEST

Declare = Callable[..., Path]
PARQUET_CODEC, PARQUET_LEVEL = "write.parquet.compression-codec", "write.parquet.compression-level"
LONG_SCHEMA = {"type": "protobuf", "schema-text": "x" * (2**20 + 1)}


def test_the_smallest_stream_has_sane_defaults(declare: Declare) -> None:
    spec = load_stream(declare())
    assert spec.commit.interval == timedelta(seconds=60)
    assert spec.commit.size == 128 * 2**20
    assert spec.source.topics == ("flights",)
    assert spec.coordinates
    assert spec.dead_letter_table == "demo.flights_dead_letters"
    assert [(c.name, c.type, c.required) for c in spec.columns] == [
        ("carrier", "string", True),
        ("departed", "timestamptz", True),
        ("delay", "int", False),
    ]


def test_every_key_can_be_written_in_its_long_form(declare: Declare) -> None:
    spec = load_stream(
        declare(
            source={
                "bootstrap-servers": "a:1,b:2",
                "topics": ["x", "y"],
                "start": "2013-12-30T00:00:00Z",
                "properties": {"fetch.min.bytes": 5, "enable.ssl.certificate.verification": False},
            },
            table={"identifier": "a.b.c", "catalog": "lake", "location": "s3://b/t", "properties": {"x": 1}},
            schema={
                "t": {"type": "timestamp", "required": True, "doc": "when"},
                "n": "struct<a: int, b: list<string>>",
            },
            event_time={"column": "t", "unit": "ms"},
            partition_by=["day(t)", "bucket(4, n.a)"],
            sort_by="n.a desc",
            commit={"interval": "250ms", "size": "1GB", "max-records": 5},
            lateness="1h30m",
            watermark={"idle-timeout": "7d"},
            coordinates=False,
            dead_letters={"table": "a.rejected"},
            resources={"cores": 4, "driver-memory": "2GiB", "spark": {"spark.x": True}},
        )
    )
    assert spec.source.start == datetime(2013, 12, 30, tzinfo=UTC)
    assert spec.source.properties == {"fetch.min.bytes": "5", "enable.ssl.certificate.verification": "false"}
    assert spec.resources.spark == {"spark.x": "true"}
    assert spec.partition_by == ("day(t)", "bucket(4, n.a)")
    assert spec.sort_by == ("n.a desc nulls last",)


def test_partition_terms_in_a_yaml_flow_list_may_contain_commas(declare: Declare) -> None:
    path = declare()
    path.write_text(path.read_text() + "partition-by: [day(departed), bucket(16, carrier), truncate(3, carrier)]\n")
    assert load_stream(path).partition_by == ("day(departed)", "bucket(16, carrier)", "truncate(3, carrier)")


def test_words_that_yaml_1_1_takes_for_booleans_are_column_names(declare: Declare) -> None:
    path = declare()
    path.write_text(path.read_text().replace("  delay: int", "  no: int\n  on: string\n  y: long"))
    assert [column.name for column in load_stream(path).columns][2:] == ["no", "on", "y"]


def test_a_misspelled_required_key_is_reported_once(declare: Declare) -> None:
    path = declare()
    path.write_text(path.read_text().replace("event-time:", "event-tme:"))
    with pytest.raises(SpecError, match="event-tme: is an unknown key; did you mean event-time") as raised:
        load_stream(path)
    assert len(str(raised.value).splitlines()) == 1


NEWER_PAGES = {"identifier": "a.b", "properties": {"write.parquet.page-version": "v2"}}
MISTAKES: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "a word for a mapping",
        {"source": {"topics": "t", "bootstrap-servers": "b:1", "key": "id", "headers": ["tenant"]}},
        [
            "source.key: 'id' is not a mapping (allowed: column, format, schema-file, schema-text, message)",
            "source.headers.0: 'tenant' is not a mapping; write {name: …, column: …} (allowed: name, column)",
        ],
    ),
    (
        "other shapes",
        {
            "source": {
                "topics": "t",
                "bootstrap-servers": ["a:1", "b:2"],
                "properties": {"security": {"protocol": "SSL"}},
            },
            "partition-by": ["day"],
        },
        [
            "source.bootstrap-servers: is a list; write one string, with commas: a:1,b:2",
            "source.properties.security: is not text; write the whole name as one key: security.protocol: …",
            "partition-by.0: 'day' refers to 'day', which is not a column; write day(column)",
        ],
    ),
    (
        "a number for a path",
        {"schema": {"n": {"type": "int", "from": 5}}},
        ["schema.n.from: 5 is neither text nor a mapping; put it in quotes"],
    ),
    ("unknown key", {"comit": {"interval": "5s"}}, ["comit: is an unknown key; did you mean commit?"]),
    ("unknown nested key", {"commit": {"intervall": "5s"}}, ["commit.intervall", "did you mean interval?"]),
    ("snake case", {"partition_by_": None, "commit": {"max_records": 5}}, ["commit.max_records", "max-records"]),
    ("missing key", {"table": None}, ["table: is missing"]),
    ("duration", {"commit": {"interval": "soon"}}, ["commit.interval: 'soon' is not a duration", "1h30m"]),
    ("zero interval", {"commit": {"interval": "0"}}, ["commit.interval: '0' is zero"]),
    ("size", {"commit": {"size": "1XB"}}, ["commit.size: '1XB' is not a size", "128MiB"]),
    ("count", {"commit": {"max-records": 0}}, ["commit.max-records: 0 is below 1"]),
    (
        "master",
        {"resources": {"master": "yarn-client"}},
        ["resources.master: 'yarn-client' is not yarn; write yarn, and set HADOOP_CONF_DIR"],
    ),
    (
        "no image",
        {"resources": {"master": "k8s://https://h:6443", "package": "x.tar.gz"}},
        ["resources.master: 'k8s://https://h:6443' needs an image", "spark.kubernetes.container.image"],
    ),
    (
        "cluster mode",
        {"resources": {"master": "yarn", "spark": {"spark.submit.deployMode": "cluster"}}},
        ["resources.spark.spark.submit.deployMode: 'cluster' is set by resources.deploy-mode"],
    ),
    (
        "cluster mode of no cluster",
        {"resources": {"deploy-mode": "cluster"}},
        ["resources.deploy-mode: 'cluster' needs a cluster; set resources.master to one"],
    ),
    (
        "cluster mode of an application",
        {"application": "small", "resources": {"master": "spark://a:7077", "deploy-mode": "cluster"}},
        ["resources.deploy-mode: 'cluster' cannot be used in a shared application"],
    ),
    (
        "cluster mode of pods",
        {
            "resources": {
                "master": "k8s://https://h:6443",
                "deploy-mode": "cluster",
                "package": "frazil-package.tar.gz",
                "spark": {"spark.kubernetes.container.image": "frazil:1"},
            }
        },
        [
            (
                "resources.package: 'frazil-package.tar.gz' cannot be used for a driver in a pod; "
                "install frazil in its image"
            )
        ],
    ),
    (
        "no master",
        {"resources": {"master": "here:7077"}},
        ["'here:7077' is not a master; write local[*] for this host"],
    ),
    ("cores of a host", {"resources": {"master": "local[4]"}}, ["is not local[*]; write local[*], and set"]),
    (
        "executors",
        {"resources": {"master": "spark://a:7077,b:7077", "cores": 3, "executor-cores": 2}},
        ["resources.executor-cores: 2 does not divide resources.cores, 3"],
    ),
    (
        "cluster behind frazil's back",
        {"resources": {"spark": {"spark.master": "spark://a:7077"}}},
        ["resources.spark.spark.master: 'spark://a:7077' is a cluster; write it in resources.master instead"],
    ),
    (
        "master twice",
        {"resources": {"master": "spark://a:7077", "spark": {"spark.master": "local[2]"}}},
        ["resources.spark.spark.master: 'local[2]' is set by resources.master"],
    ),
    (
        "package at home",
        {"resources": {"package": "x.tar.gz"}},
        ["resources.package: 'x.tar.gz' is only used by executors"],
    ),
    ("name", {"name": "My Stream"}, ["name: 'My Stream' is not a stream name"]),
    ("table", {"table": "flights"}, ["table.identifier: 'flights'", "namespace.table"]),
    ("type", {"schema": {"departed": "timestamptz", "x": "bigint"}}, ["schema.x.type: has 'bigint'", "'long'"]),
    ("no columns", {"schema": {}}, ["schema: is empty"]),
    (
        "event time missing",
        {"event_time": "departd"},
        ["event-time: 'departd' is not a column", "did you mean departed?"],
    ),
    ("event time type", {"event_time": "carrier"}, ["event-time: 'carrier' is a column of type string", "timestamptz"]),
    ("partition source", {"partition_by": ["day(departd)"]}, ["partition-by.0", "did you mean departed?"]),
    (
        "fixed partition",
        {"schema": {"departed": "timestamptz", "f": "fixed[3]"}, "partition_by": ["f"]},
        ["partition-by.0: 'f' has values of fixed[3]", "bucket(16, f)"],
    ),
    ("partition fit", {"partition_by": ["hour(carrier)"]}, ["'hour(carrier)' does not fit", "timestamp"]),
    (
        "windows to align",
        {"commit": {"align": "watermark"}},
        ["commit.align: 'watermark' waits for windows", "hour(departed) or day"],
    ),
    (
        "too coarse to align",
        {"commit": {"align": "watermark"}, "complete": "hour", "partition_by": "day(departed)"},
        ["commit.align: 'watermark' needs partition-by hour(departed), so that each file belongs to one hour"],
    ),
    (
        "so that commits can be stretched",
        {"commit": {"throttle": "stretch", "interval": "10m"}},
        ["commit.max-interval: '10m' is not above commit.interval, 10m"],
    ),
    (
        "fewer than fewest",
        {"maintenance": {"expiry": {"at-least": 600}}},
        ["maintenance.expiry.at-least: 600 is above maintenance.expiry.at-most, 500"],
    ),
    (
        "folding where batches are merged",
        {"maintenance": {"compaction": {"fold-files": 16}}, "dedupe": {"key": ["carrier"], "within": "1d"}},
        ["maintenance.compaction.fold-files: 16 has no effect with mode: upsert, dedupe"],
    ),
    ("two granularities", {"partition_by": ["day(departed)", "hour(departed)"]}, ["partition-by.1", "redundant"]),
    (
        "partition name",
        {"schema": {"t": "timestamptz", "t_day": "int"}, "event_time": "t", "partition_by": ["day(t)"]},
        ["t_day, which is also a column"],
    ),
    ("sort source", {"sort_by": ["delai desc"]}, ["sort-by.0", "did you mean delay?"]),
    (
        "twice by case",
        {"schema": {"departed": "timestamptz", "A": "int", "a": "int"}},
        ["schema.a: 'a' names the column 'A' again"],
    ),
    (
        "twice for engines",
        {"schema": {"departed": "timestamptz", "1h": "int", "_1h": "int"}},
        ["schema._1h: '_1h' names the column '1h' again"],
    ),
    (
        "fields twice for engines",
        {"schema": {"departed": "timestamptz", "s": "struct<µs: int, μs: int>"}},
        ["schema.s.type", "names the struct's field 'μs' twice"],
    ),
    (
        "coordinate",
        {"schema": {"departed": "timestamptz", "kafka_offset": "long"}},
        ["kafka_offset", "coordinates: false"],
    ),
    ("line", {"schema": {"departed": "timestamptz", "Kafka_line": "int"}}, ["Kafka_line", "that frazil adds"]),
    (
        "lines without coordinates",
        {
            "coordinates": False,
            "source": {"bootstrap-servers": "a:1", "topics": "x", "format": {"type": "json", "lines": True}},
        },
        ["source.format.lines", "needs the column kafka_line"],
    ),
    ("dotted column", {"schema": {"departed": "timestamptz", "a.b": "long"}}, ["a.b", "dot"]),
    (
        "dead letters",
        {"dead_letters": {"table": "demo.flights"}},
        ["dead-letters.table: 'demo.flights' is the stream's own"],
    ),
    (
        "start without zone",
        {"source": {"bootstrap-servers": "a:1", "topics": "x", "start": "2013-12-30T00:00:00"}},
        ["source.start: '2013-12-30T00:00:00' has no time zone"],
    ),
    ("start", {"source": {"bootstrap-servers": "a:1", "topics": "x", "start": "yesterday"}}, ["earliest, latest or"]),
    (
        "format",
        {"source": {"bootstrap-servers": "a:1", "topics": "x", "format": "xml"}},
        ["source.format: 'xml' is not allowed; write json"],
    ),
    ("no topics", {"source": {"bootstrap-servers": "a:1", "topics": []}}, ["source.topics: is empty"]),
    (
        "neither topics",
        {"source": {"bootstrap-servers": "a:1"}},
        ["source.topics: is missing; declare topics, or source.topic"],
    ),
    (
        "topics twice",
        {"source": {"bootstrap-servers": "a:1", "topics": "x", "topic-pattern": "x.*"}},
        ["source.topic-pattern: 'x.*' is declared together with source.topics; keep one of them"],
    ),
    (
        "topic pattern",
        {"source": {"bootstrap-servers": "a:1", "topic-pattern": "a(b"}},
        ["source.topic-pattern: 'a(b' is not a regular expression that RE2 supports: missing ): a(b"],
    ),
    *(
        (
            f"topic pattern that needs backtracking: {pattern}",
            {"source": {"bootstrap-servers": "a:1", "topic-pattern": pattern}},
            [
                f"source.topic-pattern: '{pattern}' is not a regular expression that RE2 supports: ",
                "look-around",
                "back references",
            ],
        )
        for pattern in ("a(?=b)", "(a)(?P=b)", "a*+", "(a{1000}){1000}")
    ),
    (
        "group id",
        {"source": {"bootstrap-servers": "a:1", "topics": "x", "properties": {"group.id": "g"}}},
        ["source.properties.group.id: 'g' is set by frazil", "the table stores the offsets"],
    ),
    (
        "reference",
        {"source": {"bootstrap-servers": "${FOO}", "topics": "x"}},
        ["source.bootstrap-servers", "${env:NAME}"],
    ),
    (
        "format version",
        {"table": {"identifier": "a.b", "properties": {"format-version": 4}}},
        ["format versions 2 and 3"],
    ),
    ("pages", {"table": {"identifier": "a.b", "properties": {"write.parquet.page-version": 2}}}, ["v1 or v2"]),
    (
        "pages with a boolean",
        {"table": NEWER_PAGES, "schema": {"departed": "timestamptz", "late": "boolean"}},
        ["table.properties.write.parquet.page-version: 'v2' cannot be used with late: Spark's vectorised reader"],
    ),
    (
        "pages with evolution",
        {"table": NEWER_PAGES, "evolution": {"mode": "additive"}},
        ["table.properties.write.parquet.page-version: 'v2' cannot be used with evolution"],
    ),
    (
        "server's URL",
        {"source": {"bootstrap-servers": "http://broker:9092", "topics": "x"}},
        ["source.bootstrap-servers: names 'http://broker:9092', which is a URL; write host:port, such as broker:9092"],
    ),
    (
        "server's port",
        {"source": {"bootstrap-servers": "a:1, broker", "topics": "x"}},
        ["source.bootstrap-servers: names 'broker' without a port"],
    ),
    (
        "Java's property",
        {"source": {"bootstrap-servers": "a:1", "topics": "x", "properties": {"ssl.truststore.location": "/x.jks"}}},
        ["source.properties.ssl.truststore.location: is a property of Kafka's Java client", "ssl.ca.location"],
    ),
    (
        "location",
        {"table": {"identifier": "a.b", "location": "not a uri"}},
        ["table.location: 'not a uri' is not a location for files", "s3://bucket"],
    ),
    (
        "location with a query",
        {"table": {"identifier": "a.b", "location": "file:///w/q?b/l"}},
        ["table.location: 'file:///w/q?b/l' has '?'", "a folder without it"],
    ),
    (
        "location with a fragment",
        {"table": {"identifier": "a.b", "location": "s3://bucket/a#b"}},
        ["table.location: 's3://bucket/a#b' has '#'"],
    ),
    (
        "location with a tab",
        {"table": {"identifier": "a.b", "location": "/w/a\tb"}},
        [r"table.location: '/w/a\tb' has '\t'"],
    ),
    (
        "folder of data with a query",
        {"table": {"identifier": "a.b", "properties": {"write.data.path": "s3://bucket/a?b"}}},
        ["table.properties.write.data.path: 's3://bucket/a?b' has '?'"],
    ),
    (
        "file format",
        {"table": {"identifier": "a.b", "properties": {"write.format.default": "orc"}}},
        ["table.properties.write.format.default: 'orc' is not supported; frazil writes parquet"],
    ),
    (
        "metrics and codec",
        {
            "table": {
                "identifier": "a.b",
                "properties": {
                    "write.metadata.metrics.default": "Truncate(8)",
                    "write.metadata.metrics.column.id": "bounds",
                    "write.parquet.compression-codec": "zip",
                    "write.parquet.page-row-limit": "0",
                },
            }
        },
        [
            "table.properties.write.metadata.metrics.column.id: 'bounds' is not a metrics mode; use none, counts, full",
            "table.properties.write.parquet.compression-codec: 'zip' is not a codec; use zstd",
            "table.properties.write.parquet.page-row-limit: '0' is not an integer from 1 to 2,147,483,647",
        ],
    ),
    (
        "compression level of gzip",
        {"table": {"identifier": "a.b", "properties": {PARQUET_CODEC: "GZIP", PARQUET_LEVEL: 99}}},
        ["compression-level: '99' is not an integer from 0 to 9, as gzip requires"],
    ),
    (
        "compression level of the default codec",
        {"table": {"identifier": "a.b", "properties": {PARQUET_LEVEL: 23}}},
        ["compression-level: '23' is not an integer from -131,072 to 22, as zstd requires"],
    ),
    (
        "bounds longer than any text",
        {"table": {"identifier": "a.b", "properties": {"write.metadata.metrics.default": f"truncate({10**20})"}}},
        ["is not a metrics mode"],
    ),
    (
        "page size above Java's integers",
        {"table": {"identifier": "a.b", "properties": {"write.parquet.page-size-bytes": 2**31}}},
        ["page-size-bytes: '2147483648' is not an integer from 1 to 2,147,483,647"],
    ),
    (
        "file size of zero",
        {"table": {"identifier": "a.b", "properties": {"write.target-file-size-bytes": 0}}},
        ["target-file-size-bytes: '0' is not an integer from 1 to 9,223,372,036,854,775,807"],
    ),
    (
        "size of a file",
        {"table": {"identifier": "a.b", "properties": {"write.target-file-size-bytes": "128MiB"}}},
        ["'128MiB' is not an integer"],
    ),
    ("json as a type", {"schema": {"departed": "timestamptz", "x": "json"}}, ["schema.x.type: has 'json'", "struct<"]),
    (
        "elements not null",
        {"schema": {"departed": "timestamptz", "x": "list<long not null>"}},
        [
            "schema.x.type: 'list<long not null>' has 'not null'",
            "an element of a list may always be null; write list<long>",
        ],
    ),
    (
        "marker's prefix",
        {"table": {"identifier": "a.b", "properties": {"frazil.stream.x": "1"}}},
        ["begins with frazil., which is reserved for frazil"],
    ),
]


@pytest.mark.parametrize(("changes", "answers"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_an_error_names_file_key_value_and_remedy(
    declare: Declare, changes: dict[str, Any], answers: list[str]
) -> None:
    path = declare(**changes)
    with pytest.raises(SpecError) as refused:
        load_stream(path)
    for answer in [str(path), *answers]:
        assert answer in str(refused.value)


def test_all_mistakes_of_a_file_are_reported_at_once(declare: Declare) -> None:
    path = declare(comit={}, lateness="x", event_time="nope", partition_by=["day(nope)"])
    with pytest.raises(SpecError) as refused:
        load_stream(path)
    keys = [line.removeprefix(f"{path}: ").split(":")[0] for line in str(refused.value).splitlines()]
    assert keys == ["lateness", "comit", "event-time", "partition-by.0"]


def test_an_invalid_section_hides_no_error_in_the_others(declare: Declare) -> None:
    path = declare(
        name="My Stream",
        source={"bootstrap-servers": "http://x", "topics": "a b", "properties": {"group.id": "g"}},
        table={"identifier": "flights", "location": "here", "properties": {"format-version": 1}},
        schema={"carrier": "strin", "departed": "timestamptz", "Carrier": "int", "delay": "int"},
        event_time="delay",
        partition_by=["hour(delay)", "hour(carrier)", "nope(delay)", "bucket(delay)"],
        sort_by=["nothing"],
        commit={"interval": "soon", "throttle": "stretch", "max-interval": "1ms"},
    )
    with pytest.raises(SpecError) as refused:
        load_stream(path)
    keys = {line.removeprefix(f"{path}: ").split(":")[0] for line in str(refused.value).splitlines()}
    assert keys == {
        "name",
        "source.topics",
        "source.bootstrap-servers",
        "source.properties.group.id",
        "table.identifier",
        "table.location",
        "table.properties.format-version",
        "schema.carrier.type",
        "schema.Carrier",
        "event-time",
        "partition-by.2",
        "partition-by.3",
        "sort-by.0",
        "commit.interval",
    }  # partition-by's columns wait for terms that can be read, and max-interval for an interval


@pytest.mark.parametrize(
    ("topics", "problems"), [({"topic-pattern": "t.*"}, []), ({"topics": "t"}, []), ({}, ["source.topics"])]
)
def test_a_mistake_elsewhere_neither_hides_nor_invents_a_mistake_about_the_topics(
    declare: Declare, topics: dict[str, str], problems: list[str]
) -> None:
    path = declare(source={"bootstrap-servers": "broker:9092", **topics}, lateness="x")
    with pytest.raises(SpecError) as refused:
        load_stream(path)
    lines = str(refused.value).splitlines()
    assert [line.removeprefix(f"{path}: ").split(":")[0] for line in lines] == ["lateness", *problems]


def test_a_required_key_column_of_an_unknown_type_is_not_said_to_be_null(declare: Declare) -> None:
    columns = {"id": "lng not null", "other": {"type": "strng", "required": True, "unit": 5}, "note": "strng"}
    path = declare(schema={"departed": "timestamptz", **columns}, mode="upsert", key=[*columns])
    with pytest.raises(SpecError) as refused:
        load_stream(path)
    keys = {line.removeprefix(f"{path}: ").split(":")[0] for line in str(refused.value).splitlines()}
    assert {key for key in keys if key.startswith("key")} == {"key.2"}


def test_a_column_of_an_unknown_type_is_still_filled_from_its_key(declare: Declare) -> None:
    source = {"bootstrap-servers": "broker:9092", "topics": "t", "format": "string", "key": {"format": "json"}}
    columns = {"value": "string", "shop": {"type": "strng", "from": {"key": "shop"}}}
    path = declare(source=source, schema=columns, event_time="kafka_timestamp")
    with pytest.raises(SpecError) as refused:
        load_stream(path)
    assert [line.removeprefix(f"{path}: ").split(":")[0] for line in str(refused.value).splitlines()] == [
        "schema.shop.type"
    ]


def test_a_column_with_an_unreadable_type_is_reported_once(declare: Declare) -> None:
    path = declare(schema={"departed": "timestmptz", "carrier": "string"}, partition_by=["day(departed)"])
    with pytest.raises(SpecError) as refused:
        load_stream(path)
    assert len(str(refused.value).splitlines()) == 1


def test_thousands_of_mistakes_are_capped(declare: Declare) -> None:
    path = declare(schema={"departed": "timestamptz", **{f"c{i}": "nope" for i in range(5_000)}})
    with pytest.raises(SpecError, match="4,950 more problems") as refused:
        load_stream(path)
    assert len(str(refused.value).splitlines()) == 51


@pytest.mark.parametrize("secret", ["hunter2", "${env:X:-hunter2}", "x${env:X}hunter2"])
@pytest.mark.parametrize("key", ["sasl.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"])
def test_a_secret_in_the_file_is_refused_and_not_repeated(declare: Declare, key: str, secret: str) -> None:
    path = declare(source={"bootstrap-servers": "a:1", "topics": "x", "properties": {key: secret}})
    with pytest.raises(SpecError, match="is a secret") as refused:
        load_stream(path)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("properties", [{"sasl.password": {"hunter2": 1}}, "sasl.password=hunter2"])
def test_a_secret_in_a_malformed_setting_is_not_repeated_in_the_error(declare: Declare, properties: object) -> None:
    path = declare(source={"bootstrap-servers": "a:1", "topics": "x", "properties": properties})
    with pytest.raises(SpecError, match=r"source\.properties.*: is not (text|a mapping)") as refused:
        load_stream(path)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "servers",
    [
        "user:hunter2@k:9092",
        "SASL_SSL://user:hunter2@k:9092",
        "kafka://user:hunter2@k",
        "user:hunter2,x@k:9092",
        "k:9092;sasl.password=hunter2",
        "k:9092?password=hunter2",
        ["user:hunter2@k:9092", "b"],
        [["user:hunter2@k:9092"]],
        [{"host": "k", "sasl.password": "hunter2"}],
        {"user:hunter2@k": 9092},
    ],
    ids=repr,
)
def test_credentials_inside_the_broker_list_are_not_repeated_in_the_error(declare: Declare, servers: object) -> None:
    path = declare(source={"bootstrap-servers": servers, "topics": "x"})
    with pytest.raises(SpecError, match=r"source\.bootstrap-servers: .*(host:port|is not text)") as refused:
        load_stream(path)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resources": {"master": "spark://user:hunter2@k:7077"}},
        {"table": {"identifier": "demo.t", "location": f"http://{'u' * 60}:{'hunter2' * 9}@k/x"}},
        {"source": "SASL_SSL://user:hunter2@k:9092"},
        {"source": {"bootstrap-servers": "a:1", "topics": "SASL_SSL://user:hunter2@k:9092"}},
        {"source": {"bootstrap-servers": "a:1", "topics": "x", "properties": {"bootstrap.servers": "u:hunter2@k:1"}}},
    ],
    ids=repr,
)
def test_credentials_before_a_host_are_masked_in_errors_about_any_key(declare: Declare, wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="…@k") as refused:
        load_stream(declare(**wrong))
    assert "hunter2" not in str(refused.value)


def test_a_malformed_server_url_is_reported_with_its_key(declare: Declare) -> None:
    with pytest.raises(SpecError, match=r"source\.bootstrap-servers: names 'kafka://\[k', which is a URL"):
        load_stream(declare(source={"bootstrap-servers": "kafka://[k", "topics": "x"}))


def test_a_secret_in_a_spark_property_is_refused_as_a_secret_too(declare: Declare) -> None:
    path = declare(resources={"spark": {"spark.hadoop.fs.s3a.secret.key": "hunter2"}})
    with pytest.raises(
        SpecError, match=r"resources\.spark\.spark\.hadoop\.fs\.s3a\.secret\.key: is a secret"
    ) as refused:
        load_stream(path)
    assert "hunter2" not in str(refused.value)


def test_a_secret_by_reference_stays_a_reference(declare: Declare) -> None:
    reference = "${airflow:kafka.password}"
    path = declare(source={"bootstrap-servers": "a:1", "topics": "x", "properties": {"sasl.password": reference}})
    assert load_stream(path).source.properties == {"sasl.password": reference}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("name: [x\n", "line 2, column 1"),
        ("name: x\nname: y\n", "line 2, column 1: the key 'name' appears twice"),
        ("- a\n", "is not a mapping"),
        ("", "declares nothing"),
        ("a: \t- b: [", "line 1"),
        ("a: &x [*y]\n", "line 1, column 8"),
        ("a:\n\tb: c\n", "line 2, column 1: .*indent with spaces"),
        ("schema:\n  x: list<struct<a: int, b: int>>\n", "line 2, .*quote the type"),
        ("schema: {x: list<struct<a: int, b: int>>}\n", "line 1, .*quote the type"),
        ("a: b: c\n", "line 1, .*quote a value"),
        ("? [a]\n: b\n", "line 1, .*a key must be text"),
        ("[" * 100_000, "is not valid YAML|line 1"),
        ("a: !!int x\n", "is not valid YAML"),
        ("a" * 5_000_000, "has 5,000,000 bytes"),
        ("a: b\nc: \0\n", "line 2: contains the control character 0x00"),
        (f"# {'日本語' * 40}\na: b\nc: \x01\n" + "# d\n" * 99, "line 3: contains the control character 0x01"),
        ("a: 'b\n", "close the quote that begins in line 1"),
        ("a:\n  b: [c\nd: e\n", "line 3, .*close the bracket that begins in line 2"),
        ("a:\n  b: c\n d: e\n", "line 3, .*indent it like its neighbouring keys, which begin in line 1"),
        ("a:b\nc: d\n", "line 2, .*a space after the colon in the line above"),
        ("a:\N{NO-BREAK SPACE}b\nc: d\n", "line 2, .*replace the character U.00A0 with a plain space"),
        ("a: b\n\N{NO-BREAK SPACE} c: d\n'': e\n", r"'\\xa0 c': is an unknown key(.|\n)*: '': is an unknown key"),
        ("a: !env B\n", "line 1, .*quote a value that begins with !"),
        ("a: *\n", r"line 1, .*quote a value that begins with \*"),
        ("a: b\n---\na: b\n", "line 2, .*declare one stream per file"),
    ],
)
def test_invalid_yaml_is_reported_with_line_and_column(tmp_path: Path, text: str, answer: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=answer):
        load_stream(path)


def test_a_file_that_is_not_utf8_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes("name: x\ndescription: Zürich\n".encode("latin-1"))
    with pytest.raises(SpecError, match=r"line 2: is not UTF-8 text .*; save the file as UTF-8"):
        load_stream(path)


@pytest.mark.parametrize("change", [lambda text: f"\ufeff{text}", lambda text: text.replace("\n", "\r\n")])
def test_a_byte_order_mark_and_the_line_ends_of_windows_change_nothing(
    declare: Declare, change: Callable[[str], str]
) -> None:
    path = declare()
    valid = load_stream(path)
    path.write_bytes(change(path.read_text()).encode())
    assert load_stream(path) == valid


def test_yaml_numbers_are_read_as_written_and_keys_are_text(declare: Declare) -> None:
    path = declare()
    columns = path.read_text().replace("delay:", "true:")
    numbers = "resources: {cores: 0x10, spark: {a: 010, b: 1:30}}\nevolution: {max-columns: 1_000}\n"
    path.write_text(f"{columns}commit: {{max-records: 0100}}\n{numbers}")
    spec = load_stream(path)
    assert (spec.commit.max_records, spec.resources.cores, spec.evolution.max_columns) == (100, 16, 1000)
    assert spec.resources.spark == {"a": "010", "b": "1:30"}
    assert spec.columns[2].name == "true"


@pytest.mark.parametrize("word", ["on", "ON", "On", "true", "off", "Off"])
def test_a_boolean_setting_may_be_written_in_any_case(declare: Declare, word: str) -> None:
    path = declare()
    path.write_text(f"{path.read_text()}maintenance: {{expiry: {word}}}\n")
    assert load_stream(path).maintenance.expiry.enabled == (word.lower() != "off")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the file does not exist"):
        load_stream(tmp_path / "x.yaml")


def test_defaults_apply_below_each_stream_key_by_key(declare: Declare, tmp_path: Path) -> None:
    (tmp_path / "_defaults.yaml").write_text(
        "source: {bootstrap-servers: 'k:1', topics: z}\ncommit: {interval: 5s, size: 1MiB}\n"
    )
    spec = load_stream(declare(source={"topics": "a"}, commit={"interval": "7s"}))
    assert (spec.source.bootstrap_servers, spec.source.topics) == ("k:1", ("a",))
    assert (spec.commit.interval, spec.commit.size) == (timedelta(seconds=7), 2**20)


@pytest.mark.parametrize("nothing", ["", "# commit: {interval: 5s}\n", "---\n"])
def test_defaults_may_be_empty(declare: Declare, tmp_path: Path, nothing: str) -> None:
    valid = load_stream(declare())
    (tmp_path / "_defaults.yaml").write_text(nothing)
    assert load_stream(declare("other.yaml")) == valid


def test_a_mistake_is_reported_with_the_file_that_has_it(declare: Declare, tmp_path: Path) -> None:
    (tmp_path / "_defaults.yaml").write_text("commit: {interval: soon}\nevent_time: x\nsource: {on-gap: x}\n")
    with pytest.raises(SpecError) as refused:
        load_stream(declare(commit={"size": "big"}))
    files = {line.split(": ")[1]: Path(line.split(": ")[0]).name for line in str(refused.value).splitlines()}
    assert files == {
        "commit.size": "flights.yaml",
        "commit.interval": "_defaults.yaml",
        "event_time": "_defaults.yaml",
        "source.on-gap": "_defaults.yaml",
    }


BROKERS = {"bootstrap-servers": "a:1", "topics": "x"}
PASSWORD, PLAIN = {"sasl.password": "x"}, {"sasl.mechanism": "PLAIN"}


@pytest.mark.parametrize(
    ("defaults", "own", "at"),
    [
        ({"source": {"bootstrap-servers": "a:1"}}, {"source": None}, "flights.yaml: source.topics"),
        (
            {"source": {"properties": PASSWORD}},
            {"source": {**BROKERS, "properties": PLAIN}},
            "_defaults.yaml: source.properties.sasl.password",
        ),
        (
            {"source": {"properties": PLAIN}},
            {"source": {**BROKERS, "properties": PASSWORD}},
            "flights.yaml: source.properties.sasl.password",
        ),
        ({"partition-by": ["day(nowhere)"]}, {}, "_defaults.yaml: partition-by"),
    ],
)
def test_an_error_in_the_defaults_is_attributed_to_the_defaults_file(
    declare: Declare, tmp_path: Path, defaults: dict[str, object], own: dict[str, object], at: str
) -> None:
    (tmp_path / "_defaults.yaml").write_text(yaml.safe_dump(defaults))
    with pytest.raises(SpecError) as refused:
        load_stream(declare(**own))
    assert f"/{at}" in str(refused.value)


def test_streams_of_a_folder_are_loaded_by_name_in_sorted_order(declare: Declare, tmp_path: Path) -> None:
    declare("1.yaml", name="b", table="d.b")
    declare("2.yml", name="a", table="d.a")
    (tmp_path / "_draft.yaml").write_text("not: a stream\n")
    assert list(load_streams(tmp_path)) == ["a", "b"]


def test_streams_that_get_in_each_others_way_are_refused(declare: Declare, tmp_path: Path) -> None:
    declare("1.yaml")
    declare("2.yaml")
    with pytest.raises(SpecError, match=r"2\.yaml: name: 'flights' is also the name of .*1\.yaml"):
        load_streams(tmp_path)
    declare("2.yaml", name="other", table="demo.flights_dead_letters")
    with pytest.raises(SpecError, match=r"1\.yaml: dead-letters\.table: 'demo\.flights_dead_letters' is the table"):
        load_streams(tmp_path)


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, r"2\.yaml: source\.topics: flights: also read into demo\.flights by the stream in .*1\.yaml, so"),
        (
            {"schema": {"carrier": "string not null", "departed": "timestamptz not null", "delay": "long"}},
            r"2\.yaml: schema\.delay: long, but the stream in .*1\.yaml, .* has: int; declare the same",
        ),
        (
            {"schema": {"carrier": "string not null", "departed": "timestamptz not null", "gate": "int not null"}},
            r"2\.yaml: schema\.gate: int not null, but the stream in .* has: no such column",
        ),
        (
            {"evolution": "full"},
            r"2\.yaml: evolution: full, but the stream in .* has: off; .* Declare full for both or neither",
        ),
        ({"complete": "day"}, r"2\.yaml: complete: day, but the stream in .* has: none; declare the same"),
    ],
)
def test_streams_of_one_table_that_do_not_agree_are_refused(
    declare: Declare, tmp_path: Path, changes: dict[str, Any], answer: str
) -> None:
    declare("1.yaml")
    declare("2.yaml", name="two", **changes)
    with pytest.raises(SpecError, match=answer) as refused:
        load_streams(tmp_path)
    assert "None" not in str(refused.value)


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        (
            {"topics": ["flights", "gates"]},
            {"topic-pattern": "fl.*"},
            r"2\.yaml: source\.topics: flights: also read into",
        ),
        (
            {"topic-pattern": "fl.*"},
            {"topics": ["gates", "flights"]},
            r"2\.yaml: source\.topics: flights: also read into",
        ),
        (
            {"topic-pattern": "fl.*"},
            {"topic-pattern": r"g\..*"},
            r"2\.yaml: source\.topic-pattern: 'g\\\.\.\*': .* has 'fl\.\*'; the records of a topic that matches both",
        ),
    ],
)
def test_topics_that_two_streams_of_one_table_read_are_refused(
    declare: Declare, tmp_path: Path, first: dict[str, Any], second: dict[str, Any], answer: str
) -> None:
    servers = {"bootstrap-servers": "localhost:9092"}
    declare("1.yaml", source={**servers, **first})
    declare("2.yaml", name="two", source={**servers, **second})
    with pytest.raises(SpecError, match=answer):
        load_streams(tmp_path)


def test_a_pattern_matches_whole_names_and_no_internal_topic(declare: Declare) -> None:
    source = {"bootstrap-servers": "localhost:9092", "topic-pattern": r"^(shop\.orders\..*|.*offsets)$"}
    declared = load_stream(declare(source=source)).source
    names = ["shop.orders.de", "shop.orders.", "a.shop.orders.de", "shop_orders.de", "__consumer_offsets", "my-offsets"]
    assert [name for name in names if name in declared.reads] == ["shop.orders.de", "shop.orders.", "my-offsets"]


def test_a_valid_topic_pattern_matches_in_time_linear_in_the_topic_name(declare: Declare) -> None:
    """`re` holds the interpreter's lock for ever on each of these, so it runs in a process that can be killed."""
    source = {"bootstrap-servers": "localhost:9092", "topic-pattern": "(a+)+$|(a|aa)+$|(.*a){20}$"}
    matching = """
import sys
from pathlib import Path
from frazil.spec.load import load_stream
assert "a" * 240 + "-b" not in load_stream(Path(sys.argv[1])).source.reads
"""
    subprocess.run([sys.executable, "-c", matching, declare(source=source)], check=True, timeout=20)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("description", {"description": "x" * 10_001}),
        ("owner", {"owner": "x" * 201}),
        ("schema.carrier.doc", {"schema": {"carrier": {"type": "string", "doc": "x" * 10_001}}}),
        ("source.bootstrap-servers", {"source": {"bootstrap-servers": "x" * 100_001, "topics": "a"}}),
        ("source.format.schema-text", {"source": {"bootstrap-servers": "a:1", "topics": "a", "format": LONG_SCHEMA}}),
    ],
)
def test_every_text_key_is_bounded_and_an_overlong_value_is_not_shown(
    declare: Declare, key: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(SpecError) as caught:
        load_stream(declare(**changes))
    (line,) = [line for line in str(caught.value).splitlines() if f" {key}:" in line]
    assert "is too long; write at most " in line
    assert len(str(caught.value)) < 1000


def with_type(text: str) -> dict[str, Any]:
    return {"schema": {"departed": "timestamptz not null", "carrier": "string", "x": text}}


@pytest.mark.parametrize(
    "changes",
    [
        {"commit": {"interval": "0" * 1_000_000}},
        {"commit": {"size": "0" * 1_000_000}},
        with_type("int" + " " * 90_000 + "x"),
        with_type("list<" * 19_000),
        with_type("struct<a: " * 49 + "int" + ">" * 49),
        with_type("struct<" + ", ".join(f"a{i}: int" for i in range(7_000)) + ">"),
        {"sort-by": ["a" + " " * 90_000 + "b"]},
        {"partition-by": ["bucket(" * 14_000]},
        {"source": {"bootstrap-servers": "a" * 90_000, "topics": "t"}},
        {"source": {"bootstrap-servers": "a@" * 45_000, "topics": "t"}},
    ],
)
@pytest.mark.timeout(100)
def test_no_text_in_a_declaration_takes_long_to_validate_or_gives_a_long_error(
    declare: Declare, changes: dict[str, Any]
) -> None:
    """Pages and DAG files read every declaration: a slow one would block all of them."""
    path = declare(**changes)
    try:
        load_stream(path)
    except SpecError as error:
        assert len(str(error)) < 3000  # noqa: PT017 - some are sound


MERGED = "m0: &m0 {a: 1}\n" + "".join(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 50)}]}}\n" for i in range(1, 9))
REPEATED = "m0: &m0 [a]\n" + "".join(f"m{i}: &m{i} [{', '.join([f'*m{i - 1}'] * 9)}]\n" for i in range(1, 9))


@pytest.mark.parametrize(
    "text",
    [MERGED, f"{REPEATED}watermark: {{idle-timeout: *m8}}\n", "m: &m [*m]\n"],
    ids=["merges", "lists", "a list that has itself"],
)
def test_multiplying_yaml_aliases_are_refused_before_they_are_resolved(tmp_path: Path, text: str) -> None:
    """Otherwise two kilobytes would take hours, in each process that reads declarations."""
    path = tmp_path / "x.yaml"
    path.write_text(text)
    loading = "import sys, pathlib, frazil.spec.load as spec; spec.load_stream(pathlib.Path(sys.argv[1]))"
    ran = subprocess.run([sys.executable, "-c", loading, path], check=False, capture_output=True, text=True, timeout=20)
    assert "x.yaml: is not valid YAML: its aliases" in ran.stderr


def test_yaml_aliases_and_merges_of_usual_size_are_resolved(tmp_path: Path, declare: Declare) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"{declare().read_text()}commit: &a {{interval: 10s}}\nwatermark: {{<<: {{idle-timeout: 1h}}}}\n")
    assert load_stream(path).watermark.idle_timeout == timedelta(hours=1)


def test_every_text_of_a_declaration_has_a_bound() -> None:
    def unbounded(node: Any, path: str) -> list[str]:
        if isinstance(node, list):
            return [found for part in node for found in unbounded(part, path)]
        if not isinstance(node, dict):
            return []
        free = node.get("type") == "string" and not {"maxLength", "enum", "const", "pattern", "format"} & node.keys()
        return [path] * free + [found for key, part in node.items() for found in unbounded(part, f"{path}/{key}")]

    assert unbounded(StreamSpec.model_json_schema(), "") == []


def test_streams_of_one_table_may_read_the_same_topic_of_two_clusters(declare: Declare, tmp_path: Path) -> None:
    declare("1.yaml")
    source = {"bootstrap-servers": "elsewhere:9092", "topics": "flights"}
    declare(
        "2.yaml", name="two", source=source, schema={"carrier": "string not null", "departed": "timestamptz not null"}
    )
    assert len(load_streams(tmp_path)) == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["day(x)", "a.b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [(str(field.alias),) for field in StreamSpec.model_fields.values()] + [
    (str(field.alias), str(inner.alias))
    for field in StreamSpec.model_fields.values()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    for inner in field.annotation.model_fields.values()
]


@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4))
def test_any_content_of_a_file_is_a_valid_stream_or_gives_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[tuple[str, ...], Any]
) -> None:
    declared: dict[str, Any] = copy.deepcopy(SMALLEST)
    for (first, *rest), value in changes.items():
        if rest:
            inner = declared.setdefault(first, {})
            declared[first] = (inner if isinstance(inner, dict) else {}) | {rest[0]: value}
        else:
            declared[first] = value
    path = tmp_path_factory.mktemp("any") / "x.yaml"
    path.write_text(yaml.safe_dump(declared))
    with suppress(SpecError):  # and nothing else
        load_stream(path)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_valid_stream_or_fail_with_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"x\.yaml: "):
        load_stream(path)


def test_errors_of_all_files_in_a_folder_are_reported(declare: Declare, tmp_path: Path) -> None:
    declare("1.yaml", lateness="x")
    declare("2.yaml", name="b", comit={})
    with pytest.raises(SpecError) as refused:
        load_streams(tmp_path)
    assert "1.yaml: lateness" in str(refused.value)
    assert "2.yaml: comit" in str(refused.value)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="FRAZIL_STREAMS"):
        load_streams(tmp_path / "nowhere")


def test_a_stream_is_found_though_its_neighbour_is_broken(declare: Declare, tmp_path: Path) -> None:
    declare()
    declare("broken.yaml", name="broken", lateness="x")
    assert find_stream(tmp_path, "flights").name == "flights"
    with pytest.raises(SpecError, match=r"did you mean flights\?.*known: broken, flights"):
        find_stream(tmp_path, "flight")


def test_an_application_name_instead_of_a_stream_name_is_refused_with_its_streams(
    declare: Declare, tmp_path: Path
) -> None:
    declare(application="small")
    declare("b.yaml", name="b", application="small")
    declare("broken.yaml", name="broken", lateness="x")
    with pytest.raises(SpecError, match=r"'small' is an application, not a stream; .* streams: b, flights$"):
        find_stream(tmp_path, "small")


def test_the_fingerprint_depends_on_the_declared_settings_and_not_on_their_form(declare: Declare) -> None:
    first = load_stream(declare(commit={"interval": "60s"})).fingerprint()
    assert load_stream(declare(commit={"interval": "1m"}, event_time={"column": "departed"})).fingerprint() == first
    assert load_stream(declare(resources={"rest-port": 7})).fingerprint() == first, "only for a driver in the cluster"
    assert load_stream(declare(commit={"interval": "61s"})).fingerprint() != first


@pytest.mark.parametrize("switch", ["off", False])
def test_maintenance_is_switched_off_as_a_whole_or_in_part(declare: Declare, switch: object) -> None:
    whole = load_stream(declare(maintenance=switch)).maintenance
    assert not any((whole.compaction.enabled, whole.manifests.enabled, whole.expiry.enabled, whole.orphans.enabled))
    assert whole.alerts.enabled
    part = load_stream(declare(maintenance={"orphans": switch})).maintenance
    assert not part.orphans.enabled
    assert part.compaction.enabled


@pytest.mark.parametrize("throttle", ["off", "warn", "stretch"])
@pytest.mark.parametrize(
    ("maintenance", "read", "bounds"),
    [
        ({"compaction": "off", "orphans": {"older-than": "9d"}, "alerts": {"manifests": 7}}, False, False),
        ({"compaction": {"fold-files": 8}}, True, False),
        ({"compaction": {"enabled": False, "fold-files": 8}}, False, False),
        ({"expiry": {"at-most": 900}}, True, True),
        ({"expiry": {"keep": "1h"}}, True, False),
        ({"manifests": {"max-count": 7}}, False, True),
        ({"every": "2h"}, False, True),
        ("off", True, True),
    ],
)
def test_a_writers_fingerprint_includes_only_the_maintenance_settings_that_it_reads(
    declare: Declare, maintenance: object, read: bool, bounds: bool, throttle: str
) -> None:
    """A writer folds files and expires snapshots itself; its throttle also reads bounds."""
    before = load_stream(declare(commit={"throttle": throttle}))
    after = load_stream(declare(commit={"throttle": throttle}, maintenance=maintenance))
    assert (before.fingerprint() != after.fingerprint()) is (read or (bounds and throttle != "off"))
    assert (MetadataBounds.for_stream(before) != MetadataBounds.for_stream(after)) is bounds


def test_a_stream_survives_a_json_round_trip(declare: Declare) -> None:
    spec = load_stream(declare(partition_by=["day(departed)"], commit={"interval": "250ms"}))
    assert StreamSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_streams_of_this_checkout_are_valid() -> None:
    streams = load_streams(Path("include/streams"))
    assert streams["flights"].table.identifier == "demo.flights"


def test_loading_a_declaration_imports_neither_pyiceberg_nor_pyarrow(declare: Declare) -> None:
    code = (
        "import pathlib, sys; from frazil.spec.load import load_stream; load_stream(pathlib.Path(sys.argv[1])); "
        "sys.exit('pyiceberg' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, declare()], check=False).returncode == 0


def test_a_stream_whose_own_file_is_broken_is_not_unknown(declare: Callable[..., Path], tmp_path: Path) -> None:
    declare()
    (tmp_path / "trips.yaml").write_text("name: trips\nsource: {topics: [trips\n")
    with pytest.raises(SpecError) as refused:
        find_stream(tmp_path, "trips")
    assert str(refused.value).startswith(f"{tmp_path / 'trips.yaml'}: line 3, column 1: ")
    assert "flights" not in str(refused.value)
