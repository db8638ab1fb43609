"""The preparation of a submission, and the arguments for each kind of cluster."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from frazil.cluster.driver import ApiUnavailable, ClusterDriver
from frazil.errors import EnvironmentUnusable, SpecError, TopicMissing
from frazil.kafka.admin import Topics
from frazil.offsets.spans import SourceIdentity
from frazil.remote import driver_inputs
from frazil.remote.driver_inputs import inline_schema_file, prepare_driver
from frazil.remote.submitter import StandaloneSubmitter, YarnSubmitter, create_submitter, run_spark_submit
from frazil.spec.formats import AvroFormat, read_schema_text
from frazil.spec.load import load_stream, validate_stream
from frazil.spec.resources import Resources
from frazil.spec.source import TopicPattern

STREAM = """
name: ticks
source: {topics: [ticks], format: json, bootstrap-servers: 'localhost:1'}
table: test.ticks
schema: {at: timestamptz not null}
event-time: at
"""


def driver(**resources: Any) -> ClusterDriver:
    declared = Resources.model_validate({"deploy-mode": "cluster", **resources}, by_alias=True, by_name=False)
    return ClusterDriver("ticks", "a" * 32, "/opt/drive_stream.py", ("ticks",), declared, {"KAFKA_PASSWORD": "hush"})


def test_a_declaration_carries_its_schema_file_along(tmp_path: Path) -> None:
    (tmp_path / "ticks.avsc").write_text('"string"')
    declared = {"name": "ticks", "source": {"topics": ["t"], "format": {"type": "avro", "schema-file": "ticks.avsc"}}}
    found = inline_schema_file(declared, tmp_path)
    assert found["source"] == {"topics": ["t"], "format": {"type": "avro", "schema-text": '"string"'}}
    assert inline_schema_file({"source": {"format": "json"}}, tmp_path) == {"source": {"format": "json"}}
    (tmp_path / "ticks.avsc").unlink()
    with pytest.raises(SpecError, match=r"cannot read .*ticks\.avsc"):
        inline_schema_file(declared, tmp_path)


def test_a_declaration_carries_the_schema_file_of_its_keys_along(tmp_path: Path) -> None:
    schema = '{"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]}'
    (tmp_path / "key.avsc").write_text(schema)
    declared = {
        "name": "ticks",
        "source": {
            "topics": ["t"],
            "bootstrap-servers": "localhost:1",
            "format": "json",
            "key": {"format": "avro", "schema-file": "key.avsc"},
        },
        "table": {"identifier": "a.b"},
        "schema": {"at": "timestamptz not null", "id": {"type": "long", "from": {"key": "id"}}},
        "event-time": "at",
    }

    driver = validate_stream(inline_schema_file(declared, tmp_path), Path("ticks.yaml"))

    assert isinstance(driver.key_format, AvroFormat)
    assert read_schema_text(driver.key_format) == schema


def test_a_compiled_descriptor_is_sent_in_base64(tmp_path: Path) -> None:
    (tmp_path / "v.desc").write_bytes(b"\n\xff\x80")
    form = {"type": "protobuf", "schema-file": "v.desc"}

    found = inline_schema_file({"source": {"format": form}}, tmp_path)

    assert found["source"]["format"]["schema-text"] == base64.b64encode(b"\n\xff\x80").decode()


def test_the_embedded_catalog_is_refused_where_the_cluster_has_other_hosts(tmp_path: Path, frazil_home: Path) -> None:  # noqa: ARG001
    file = tmp_path / "ticks.yaml"
    file.write_text(f"{STREAM}resources: {{master: 'spark://m:7077', deploy-mode: cluster}}\n")
    with pytest.raises(SpecError, match="cannot use the embedded catalog"):
        prepare_driver(load_stream(file), tmp_path, program=Path("/opt/drive_stream.py"))


def test_a_pattern_that_matches_no_topic_leaves_no_empty_table_behind(
    tmp_path: Path,
    frazil_home: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[object] = []

    class NoTopics:
        def __init__(self, _: object, topics: object, **__: object) -> None:
            requested.append(topics)

        def describe(self) -> Topics:
            return Topics(SourceIdentity("c1", {}), ())

    monkeypatch.setattr(driver_inputs, "KafkaAdmin", lambda *a, **k: nullcontext(NoTopics(*a, **k)))
    file = tmp_path / "ticks.yaml"
    resources = "resources: {master: 'spark://127.0.0.1:7077', deploy-mode: cluster}\n"
    file.write_text(STREAM.replace("topics: [ticks]", "topic-pattern: 'ticks[.].*'") + resources)
    with pytest.raises(TopicMissing, match=r"Kafka has no topics that match 'ticks\[\.\]\.\*' yet"):
        prepare_driver(load_stream(file), tmp_path, program=Path("/opt/drive_stream.py"))
    assert requested == [TopicPattern("ticks[.].*")]


def test_no_resolved_reference_is_on_a_standalone_drivers_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: dict[str, Any] = {}

    def take(_: object, request: dict[str, Any]) -> str:
        requested.update(request)
        return "driver-1"

    monkeypatch.setattr("frazil.cluster.standalone.submit", take)
    spark = {"spark.ssl.keyPassword": "${env:KEY}", "spark.local.dir": "/d", "spark.pyspark.driver.python": "/p"}
    submitted = driver(master="spark://m:7077", package="/frazil.tar.gz", spark=spark)
    assert StandaloneSubmitter(submitted.resources).submit(submitted) == "driver-1"
    properties, environment = requested["sparkProperties"], requested["environmentVariables"]
    assert "spark.ssl.keyPassword" not in properties
    assert properties["spark.local.dir"] == "/d"
    assert properties["spark.archives"] == "/frazil.tar.gz#frazil-package"
    assert environment["KAFKA_PASSWORD"] == "hush"
    assert environment["PYSPARK_DRIVER_PYTHON"] == "/p"
    assert "hush" not in str(properties)


def test_the_next_submission_begins_at_another_master_after_one_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[tuple[str, ...]] = []

    def hang(addresses: tuple[str, ...], _: object) -> str:
        requested.append(addresses)
        raise ApiUnavailable("it did not respond in time")

    monkeypatch.setattr("frazil.cluster.standalone.submit", hang)
    submitted = driver(master="spark://a:7077,b:7077")
    masters = StandaloneSubmitter(submitted.resources)
    for _ in range(2):
        with pytest.raises(ApiUnavailable):
            masters.submit(submitted)
    assert requested == [("http://a:6066", "http://b:6066"), ("http://b:6066", "http://a:6066")]


def test_spark_submit_has_its_secrets_in_a_file_of_its_own() -> None:
    seen: list[str] = []

    def run(command: tuple[str, ...], *, env: Mapping[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        file = Path(command[2])
        assert command[::2] == (f"{env['SPARK_HOME']}/bin/spark-submit", str(file), "ticks")
        assert command[1::2] == ("--properties-file", "/opt/drive_stream.py")
        assert file.stat().st_mode & 0o077 == 0
        seen.append(file.read_text())
        assert "hush" not in str(command)
        return subprocess.CompletedProcess(command, 0, "", "Submitted application application_1_2\n")

    assert "application_1_2" in run_spark_submit(driver(master="yarn"), run=run)
    assert "appMasterEnv.KAFKA_PASSWORD=hush" in seen[0]

    def fail(command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "26/11/23 INFO x\nException in thread: no queue\n\tat y\n")

    with pytest.raises(EnvironmentUnusable, match=r"exit code 1: Exception in thread: no queue$"):
        run_spark_submit(driver(master="yarn"), run=fail)

    def hang(command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 1)

    with pytest.raises(ApiUnavailable, match="did not end within"):
        run_spark_submit(driver(master="yarn"), run=hang)


REQUESTED = "26/11/22 22:50:40 INFO Client: Submitting application application_1_0002 to ResourceManager\n"
ACCEPTED = "26/11/22 22:50:41 INFO YarnClientImpl: Submitted application application_1_0002\n"
REFUSED = "Exception in thread: no queue\n"


@pytest.mark.parametrize(
    ("said", "yarn_has", "comes_to"),
    [
        (
            REQUESTED + ACCEPTED + "Exception in thread: the report was lost\n",
            ApiUnavailable("away"),
            "application_1_0002",
        ),
        (REQUESTED + "Exception in thread: connection reset\n", "application_1_0002", "application_1_0002"),
        ("Exception in thread: connection reset\n", "application_1_0002", "application_1_0002"),
        (REQUESTED + REFUSED, None, EnvironmentUnusable),
        (REQUESTED + "Exception in thread: connection reset\n", ApiUnavailable("away"), ApiUnavailable),
        ("Exception in thread: no such host\n", ApiUnavailable("away"), EnvironmentUnusable),
    ],
    ids=["it said so", "YARN has it", "YARN has it, its log is silent", "YARN has none", "nobody knows", "never asked"],
)
def test_yarn_decides_whether_a_failed_spark_submit_was_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, yarn_has: Any, comes_to: Any
) -> None:
    def failed(command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", said)

    def tagged(tag: str, **_: Any) -> str | None:
        assert tag == f"frazil-{'a' * 32}"
        if isinstance(yarn_has, ApiUnavailable):
            raise yarn_has
        return yarn_has

    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    monkeypatch.setattr("frazil.remote.submitter.find_application", tagged)
    monkeypatch.setattr("frazil.remote.submitter.run_spark_submit", partial(run_spark_submit, run=failed))
    yarn = YarnSubmitter({"HADOOP_CONF_DIR": str(tmp_path)})
    if isinstance(comes_to, str):
        assert yarn.submit(driver(master="yarn")) == comes_to
    else:
        with pytest.raises(comes_to, match="spark-submit ended with exit code 1"):
            yarn.submit(driver(master="yarn"))
    assert yarn.find(driver(master="yarn")) == (None if isinstance(yarn_has, ApiUnavailable) else yarn_has)


def test_the_agent_refuses_yarn_without_a_hadoop_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("frazil.remote.submitter.require_java", lambda: None)
    with pytest.raises(EnvironmentUnusable, match="HADOOP_CONF_DIR is not set"):
        create_submitter(driver(master="yarn").resources)


@pytest.mark.processes
def test_an_agent_starts_without_pyspark() -> None:
    code = "import sys; sys.modules.update(pyspark=None, py4j=None); import frazil.remote.agent"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
