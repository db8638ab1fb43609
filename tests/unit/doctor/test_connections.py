"""`frazil validate --connect` reports problems of catalog and storage; tests/e2e has a broker."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
from click.testing import CliRunner, Result
from moto import mock_aws
from pyiceberg.catalog import Catalog

from frazil.cli.main import frazil
from frazil.commit import catalog_probe
from frazil.doctor import CheckState, Finding, connections, streams
from frazil.doctor.connections import Connections
from frazil.errors import (
    AccessDenied,
    FrazilError,
    KafkaUnavailable,
    MissingExtra,
    SpecError,
    TableLost,
    TopicMissing,
)
from frazil.kafka.admin import KafkaAdmin
from frazil.offsets.spans import TopicPartition
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_kafka_properties
from frazil.status.fixes import Service, explain_error
from frazil.table import catalogs
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_dead_letters, ensure_table
from tests.made_registry import made_registry
from tests.silent_server import silent_server


def declare(folder: Path, name: str = "rides") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(
        f"name: {name}\nsource: {{topics: [{name}], format: json, bootstrap-servers: '127.0.0.1:1'}}\n"
        f"table: {{identifier: city.{name}, catalog: lake}}\n"
        "schema: {at: timestamptz not null}\nevent-time: at\n"
    )
    return file


def configure(monkeypatch: pytest.MonkeyPatch, **properties: str) -> None:
    for key, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key.upper()}", value)


def validate(*arguments: str) -> Result:
    return CliRunner().invoke(frazil, ["validate", "--connect", *arguments])


def reasons(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if not line.startswith("  → ")]


@pytest.fixture(autouse=True)
def _brokers_answer(frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setattr(connections, "_check_kafka", lambda spec: f"topic {spec.source.topics[0]}: 3 partitions")


def test_validate_reports_the_topics_and_the_catalog_that_it_reached_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    result = validate(str(declare(tmp_path)))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1:] == [
        "rides: topic rides: 3 partitions",
        "rides: the catalog and its storage can hold city.rides",
    ]
    assert load_catalog("lake").list_namespaces() == []
    assert not (tmp_path / "warehouse").exists()


def test_an_existing_table_that_the_writer_would_refuse_is_an_error_and_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    file = declare(tmp_path)
    declared = file.read_text()
    file.write_text(declared.replace("at: timestamptz not null", "at: timestamptz not null, n: long"))
    spec, catalog = load_stream(file), load_catalog("lake")
    tables = [ensure_table(catalog, spec), ensure_dead_letters(catalog, spec)]
    assert validate(str(file)).exit_code == 0
    file.write_text(declared.replace("at: timestamptz not null", "at: timestamptz not null, more: string"))
    assert validate(str(file)).exit_code == 0, "the writer's start adds the column"
    file.write_text(declared.replace("at: timestamptz not null", "at: timestamptz not null, n: string"))
    result = validate(str(file))
    assert result.exit_code == 10
    assert "rides: table: SchemaIncompatible: the declared schema does not fit" in result.stderr
    assert "can hold" not in result.stdout
    (fault,) = Connections.check([load_stream(file)]).faults
    assert fault.problem.remedy == "Change the declaration, or write to a new table"
    assert [catalog.load_table(t.name()).metadata_location for t in tables] == [t.metadata_location for t in tables]


def test_a_table_that_cannot_be_loaded_is_reported_once_with_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    file = declare(tmp_path)
    table = ensure_table(load_catalog("lake"), load_stream(file))
    Path(table.metadata_location.removeprefix("file://")).unlink()
    (fault,) = Connections.check([load_stream(file)]).faults
    assert fault.problem.headline.startswith("rides: table: TableLost: ")


def test_a_declared_layout_that_an_existing_table_does_not_get_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    file = declare(tmp_path)
    ensure_table(load_catalog("lake"), load_stream(file))
    file.write_text(file.read_text().replace("catalog: lake", "catalog: lake, properties: {format-version: 3}"))
    said = "rides: table: the declared format version is [3], but table city.rides has [2], which is not changed"
    result = validate(str(file))
    assert result.exit_code == 0
    assert f"warning: {said}" in result.stderr
    assert [one.message for one in connections_of(file) if one.state is CheckState.WARNING] == [
        f"{said}. Change the declaration, or write to a new table"
    ]


def test_each_namespace_that_the_stream_writes_to_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    file = declare(tmp_path)
    file.write_text(
        file.read_text()
        + "dead-letters: {table: quarantine.rides}\n"
        + "route: {by: header, name: tenant, tables: {a: tenants.a, b: tenants.b}, template: 'made.{value}'}\n"
    )
    good = "rides: the catalog and its storage can hold city.rides, and tables in quarantine, tenants, made"
    assert validate(str(file)).stdout.splitlines()[2:] == [good]

    def denied(catalog: Catalog, spec: StreamSpec, *, now_ms: int) -> tuple[str, ...]:
        if spec.table.identifier.startswith("quarantine."):
            raise AccessDenied("no table may be created")
        return probed(catalog, spec, now_ms=now_ms)

    probed = catalog_probe.probe
    monkeypatch.setattr(catalog_probe, "probe", denied)
    result = validate(str(file))
    assert result.exit_code == 10
    assert "rides: table: namespace quarantine: AccessDenied: no table may be created" in result.stderr
    assert good not in result.stdout


@pytest.mark.parametrize(
    ("partitions", "said"),
    [
        (None, ""),
        ([], "; transactions db.transaction: the topic does not exist yet, so it is not checked. The connector"),
        ([("db.transaction", 0)], "; transactions db.transaction: 1 partition"),
    ],
)
def test_a_missing_transaction_topic_is_reported(partitions: list[TopicPartition] | None, said: str) -> None:
    envelope = SimpleNamespace(transactions="db.transaction")
    with patch.object(connections, "envelope_of", lambda _: envelope):
        words = connections._describe_transactions(Mock(), partitions)
    assert words.startswith(said)
    assert bool(words) == bool(said)


def test_validate_keeps_an_existing_empty_warehouse_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warehouse").mkdir()
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    assert validate(str(declare(tmp_path))).exit_code == 0
    assert list((tmp_path / "warehouse").iterdir()) == []


def test_validate_does_not_create_a_declared_table_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    own = tmp_path / "own"
    file = declare(tmp_path)
    file.write_text(file.read_text().replace("catalog: lake}", f"catalog: lake, location: 'file://{own}'}}"))
    assert validate(str(file)).exit_code == 0
    assert not own.exists()


def test_brokers_that_are_down_are_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def silent(spec: StreamSpec) -> str:
        requested.append(spec.name)
        servers = resolve_kafka_properties(spec, os.environ)["bootstrap.servers"]
        with KafkaAdmin({"bootstrap.servers": servers}, spec.source.topics, timeout_s=0.01) as kafka:
            return str(kafka.describe())

    monkeypatch.setattr(connections, "_check_kafka", silent)
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    monkeypatch.setenv("THE_KAFKA", "127.0.0.1:1")
    files = [declare(tmp_path, name) for name in ("bikes", "rides", "trips")]
    for file in files[:2]:
        file.write_text(file.read_text().replace("127.0.0.1:1", "${env:THE_KAFKA}"))
    files[2].write_text(files[2].read_text().replace("127.0.0.1:1", "127.0.0.1:2"))
    result = validate(*map(str, files))
    assert (result.exit_code, requested) == (10, ["bikes", "trips"])
    cause = "source: KafkaUnavailable: Kafka at"
    assert [line.partition(" did")[0] for line in reasons(result)] == [
        f"bikes, rides: {cause} 127.0.0.1:1",
        f"trips: {cause} 127.0.0.1:2",
    ]


def test_a_silent_leader_of_one_topic_is_not_reported_for_other_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent_leader(spec: StreamSpec) -> str:
        with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, spec.source.topics, timeout_s=0.01) as kafka:
            return str(kafka.earliest([(spec.name, 0)]))

    monkeypatch.setattr(connections, "_check_kafka", silent_leader)
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    files = [declare(tmp_path, name) for name in ("bikes", "rides")]
    assert [line.partition(" at ")[0] for line in reasons(validate(*map(str, files)))] == [
        f"{name}: source: KafkaUnavailable: listing offsets of topics {name}" for name in ("bikes", "rides")
    ]


def test_a_cause_is_reported_once_with_its_streams_and_their_catalog_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_kafka(_: object) -> str:
        raise KafkaUnavailable("no broker answers")

    monkeypatch.setattr(connections, "_check_kafka", no_kafka)
    requested = []
    problems = connections._check_catalog
    monkeypatch.setattr(
        connections, "_check_catalog", lambda spec, *rest: requested.append(spec.name) or problems(spec, *rest)
    )
    configure(monkeypatch, type="rest", uri="http://127.0.0.1:1")
    files = [declare(tmp_path, name) for name in ("rides", "trips")]
    result = validate(*map(str, files))
    assert result.exit_code == 10
    causes = [
        "rides, trips: source: KafkaUnavailable: no broker answers",
        "rides, trips: table: CommitUnavailable: the catalog 'lake' cannot be reached at http://127.0.0.1:1: ",
    ]
    assert [line[: len(cause)] for line, cause in zip(reasons(result), causes, strict=True)] == causes
    assert result.stderr.splitlines()[-1].startswith("  → Start the catalog and its storage")
    assert requested == ["rides"]
    found = [one.message for one in connections_of(*files)]
    assert [line[: len(cause)] for line, cause in zip(found, causes, strict=True)] == causes


def test_a_catalog_that_does_not_answer_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "ANSWER_TIMEOUT_S", 0.3)
    files = [declare(tmp_path, name) for name in ("rides", "trips", "walks")]
    with silent_server() as server:
        configure(monkeypatch, type="rest", uri=f"http://127.0.0.1:{server.port}")
        (found,) = [one.message for one in connections_of(*files) if one.state is CheckState.WRONG]
        assert server.waiting() == 1
    assert found == "rides, trips, walks: table: CommitUnavailable: the catalog 'lake' does not answer"


def test_a_missing_variable_is_reported_once_with_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    monkeypatch.setattr(connections, "_check_kafka", lambda spec: f"{resolve_kafka_properties(spec, os.environ)}")
    files = [declare(tmp_path, name) for name in ("rides", "trips")]
    for file in files:
        file.write_text(file.read_text().replace("127.0.0.1:1", "${env:NOWHERE_SET}"))
    (one,) = connections_of(*files)
    missing = "the environment variable NOWHERE_SET is not set in this process, or is empty"
    assert one.message.startswith(f"rides, trips: source: SpecError: source: bootstrap.servers: {missing}")


def test_a_refusal_names_its_stream_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")

    def refuse(spec: StreamSpec) -> str:
        raise AccessDenied("brokers kafka:9092: Kafka refuses access to rides", stream=spec.name)

    monkeypatch.setattr(connections, "_check_kafka", refuse)
    (one,) = connections_of(declare(tmp_path))
    assert one.message == "rides: source: AccessDenied: brokers kafka:9092: Kafka refuses access to rides"


def test_an_error_keeps_its_stream_in_another_process() -> None:
    for kind in (AccessDenied, MissingExtra):
        error = pickle.loads(pickle.dumps(kind("refused", stream="rides")))
        assert (str(error), error.reason) == ("stream rides: refused", "refused")


def test_the_schema_registry_is_checked_and_each_error_is_reported_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, type="rest", uri="http://127.0.0.1:1")
    file = declare(tmp_path)
    with made_registry() as registry:
        avro = f"format: {{type: avro, registry: {{url: '{registry.url}', timeout: 200ms}}}}"
        file.write_text(file.read_text().replace("format: json", avro))
        spec = load_stream(file)
        assert "rides: its schema registry answers" in Connections.check([spec]).good
        assert registry.requested == ["/subjects/rides-value/versions/latest"]
        registry.answers[registry.requested[0]] = [(403, {"error_code": 403})]
        (refused, _) = Connections.check([spec]).faults
        assert "refuses the credentials (403)" in refused.problem.reason
    (away, no_catalog) = connections_of(file)
    assert "source.format.registry: RegistryUnavailable: the schema registry http://127" in away.message
    assert away.state is CheckState.WRONG
    assert away.fix == "Start the registry, make it reachable from this host, or correct its url and credentials"
    assert (
        no_catalog.fix
        == "Start the catalog and its storage, make them reachable from this host, or correct .pyiceberg.yaml"
    )


def connections_of(*files: Path) -> list[Finding]:
    declared = {file: load_stream(file) for file in files}
    return [one for one in streams.check_connections(declared) if one.state is not CheckState.OK]


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        (Service.SOURCE, TopicMissing("gone", remedy="Create it"), "Create it"),
        (Service.SOURCE, SpecError(""), "Set the variables"),
        (Service.TABLE, TableLost(""), "A lost catalog"),
        (Service.TABLE, AccessDenied(""), "credentials"),
        (Service.TABLE, SpecError(""), "table.catalog"),
    ],
)
def test_the_suggested_fix_depends_on_the_kind_of_error(place: Service, error: FrazilError, said: str) -> None:
    assert said in explain_error(place, error).remedy
    assert explain_error(place, MissingExtra("pip install")).remedy == ""


def test_a_warehouse_that_may_not_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db")
    result = validate(str(declare(tmp_path)))
    assert result.exit_code == 10
    assert "table: SpecError: the catalog 'lake' is misconfigured: No default path is set" in result.stderr


def test_glue_can_hold_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against moto, whose conditional update by version is Glue's."""
    configure(
        monkeypatch,
        type="glue",
        glue__region="eu-west-1",
        glue__access_key_id="key",
        glue__secret_access_key="secret",
        warehouse=f"file://{tmp_path}/warehouse",
    )
    with mock_aws():
        result = validate(str(declare(tmp_path)))
        assert result.exit_code == 0, result.output
        assert load_catalog("lake").list_namespaces() == []
