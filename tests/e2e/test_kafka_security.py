"""A secured broker: the reader and the planner connect, or report in one sentence why they cannot.

Certificates and tokens that are refused need no broker: see `tests/unit/kafka/test_refused_before_kafka.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import pytest
from confluent_kafka import Producer

from frazil.doctor.connections import Connections
from frazil.errors import AccessDenied, KafkaUnavailable
from frazil.ingest.contract import OffsetRange
from frazil.ingest.kafka_columns import ColumnReader
from frazil.ingest.readers import create_kafka_reader
from frazil.kafka.admin import KafkaAdmin
from frazil.kafka.fetch import check_readable
from frazil.spec.formats import Envelope, JsonFormat
from frazil.spec.load import load_stream
from frazil.spec.source import TopicPattern
from tests import polling
from tests.conftest import DeclaredStream
from tests.secured_kafka import PASSWORD, USER, SecuredKafka, TokenServer, made_tokens

RECORDS = 5
# A test that takes longer hangs; the readers own limit for silent brokers is two minutes.
pytestmark = pytest.mark.timeout(60)


@dataclass
class Source:
    """The broker with a topic for us and one for others, and every way to it as a client's properties."""

    secured: SecuredKafka
    tokens: TokenServer
    topic: str = "ours"
    of_others: str = "theirs"
    hidden: str = "hidden"
    ways: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tls = {"security.protocol": "SSL", "ssl.ca.location": str(self.secured.authority.certificate)}
        pem = str(self.secured.client_certificate)
        scram = self._sasl("SCRAM-SHA-512")
        self.ways = {
            "PLAIN": self._at("SASL", self._sasl("PLAIN")),
            "SCRAM": self._at("SASL", scram),
            "TLS": self._at("TLS", tls),
            "mutual TLS": self._at("MUTUAL", {**tls, "ssl.certificate.location": pem, "ssl.key.location": pem}),
            "SASL over TLS": self._at("SASLTLS", {**scram, **tls, "security.protocol": "SASL_SSL"}),
            "OIDC": self._at("SASL", self._oidc("frazil")),
            "a function": self.function("600"),
            "wrong password": self._at("SASL", self._sasl("PLAIN", "x")),
            "wrong SCRAM password": self._at("SASL", self._sasl("SCRAM-SHA-512", "x")),
            "mechanism that is off": self._at("SASL", self._sasl("SCRAM-SHA-256")),
            "a token of its own": self._at(
                "SASL",
                {
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "OAUTHBEARER",
                    "enable.sasl.oauthbearer.unsecure.jwt": "true",
                    "sasl.oauthbearer.config": f"principal={USER}",
                },
            ),
        }

    def _at(self, listener: str, properties: dict[str, str]) -> dict[str, str]:
        return {"bootstrap.servers": self.secured.address(listener), "log_level": "0", **properties}

    def _sasl(self, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": password,
        }

    def function(self, config: str) -> dict[str, str]:
        properties = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "tests.secured_kafka:make_token",
            "sasl.oauthbearer.config": config,
        }
        return self._at("SASL", properties)

    def _oidc(self, client: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": "any",
            "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
        }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("secured")
    made = Source(SecuredKafka(folder), TokenServer())
    broker = made.secured.broker
    with broker, made.tokens.serving():
        made.secured.add_scram_user()
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for topic in (made.topic, made.of_others, made.hidden):
            broker.create_topic(topic)
            for number in range(RECORDS):
                producer.produce(topic, b'{"id":%d,"at":"2026-01-01"}' % number)
        assert producer.flush(30) == 0
        made.secured.keep_from_us(made.of_others, may_describe=True)
        made.secured.keep_from_us(made.hidden, may_describe=False)
        yield made


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    "way", ["PLAIN", "SCRAM", "TLS", "mutual TLS", "SASL over TLS", "OIDC", "a function", "a token of its own"]
)
def test_planner_and_reader_can_authenticate(source: Source, way: str) -> None:
    properties = source.ways[way]
    with create_kafka_reader(properties, [OffsetRange(source.topic, 0, 0, RECORDS)]) as reader:
        assert [offset for chunk in reader for offset in chunk.offsets.tolist()] == list(range(RECORDS))
    with KafkaAdmin(properties, [source.topic]) as kafka:
        assert kafka.ends(kafka.describe().partitions) == {(source.topic, 0): RECORDS}
    check_readable(properties, [(source.topic, 0)], stream="rides", timeout_s=20)


def test_a_function_is_called_again_before_its_token_expires(source: Source) -> None:
    made_tokens.clear()
    with create_kafka_reader(source.function("3"), [OffsetRange(source.topic, 0, 0, RECORDS)]) as reader:
        assert sum(len(chunk.offsets) for chunk in reader) == RECORDS
        polling.eventually(lambda: reader._fetch(1, 0.05) == 0 and len(made_tokens) > 2)


@pytest.mark.parametrize("asks", ["reader", "planner"])
def test_the_error_of_a_token_function_is_reported_as_the_cause(source: Source, asks: str) -> None:
    properties, ranges = source.function("no lease"), [OffsetRange(source.topic, 0, 0, RECORDS)]
    with ExitStack() as end:
        if asks == "planner":

            def ask() -> None:
                end.enter_context(KafkaAdmin(properties, [source.topic], stream="flights")).describe()
        else:

            def ask() -> None:
                list(end.enter_context(ColumnReader(properties, ranges, stream="flights", unreachable_limit_s=1)))

        with pytest.raises(KafkaUnavailable, match="the vault is sealed: no lease"):
            ask()


@pytest.mark.parametrize(
    ("way", "said", "check"),
    [
        ("wrong password", "Invalid username or password", "source.properties"),
        ("wrong SCRAM password", "invalid credentials", "source.properties"),
        ("mechanism that is off", "supported mechanisms: PLAIN,SCRAM-SHA-512,OAUTHBEARER", "source.properties"),
    ],
)
@pytest.mark.parametrize("asks", ["reader", "planner"])
def test_a_refused_connection_names_the_refusing_service_and_the_setting_to_check(
    source: Source, way: str, said: str, check: str, asks: str
) -> None:
    properties = source.ways[way]
    with ExitStack() as end:
        if asks == "planner":
            ask: Callable[[], object] = end.enter_context(
                KafkaAdmin(properties, [source.topic], stream="flights")
            ).describe
        else:
            ranges = [OffsetRange(source.topic, 0, 0, RECORDS)]
            ask = partial(list, end.enter_context(ColumnReader(properties, ranges, stream="flights")))
        with pytest.raises(AccessDenied) as refused:
            ask()
    text = str(refused.value)
    assert text.startswith(f"stream flights: brokers {properties['bootstrap.servers']}: ")
    assert said in text
    assert check in text[text.rindex(" Check ") :]
    assert "\n" not in text


def test_a_topic_hidden_by_the_broker_is_distinguished_from_a_missing_one(source: Source) -> None:
    pattern = TopicPattern("ours|theirs|hidden|never-made")
    with KafkaAdmin(source.ways["PLAIN"], pattern, stream="flights") as kafka:
        assert kafka.describe().identity.topic_ids.keys() == {source.topic, source.of_others}
        kafka.check_not_hidden([source.topic, source.of_others, "never-made"])
        with pytest.raises(AccessDenied, match=r"stream flights: brokers .* has read: hidden\. Grant"):
            kafka.check_not_hidden([source.hidden, "never-made"])


def declared(stream: DeclaredStream, source: Source, way: str, topic: str) -> DeclaredStream:
    properties = source.ways[way]
    stream.topic, stream.bootstrap = topic, properties["bootstrap.servers"]
    lines = "".join(
        f"    {key}: '{value}'\n"
        for key, value in properties.items()
        if key not in {"bootstrap.servers", "sasl.password"}
    )
    path = stream.streams / f"{stream.name}.yaml"
    stream.declare()
    text = path.read_text().replace(
        f"source: {{topics: [{topic}], format: json, bootstrap-servers: '{stream.bootstrap}'}}\n",
        f"source:\n  topics: [{topic}]\n  format: json\n  bootstrap-servers: '{stream.bootstrap}'\n"
        f"  properties:\n{lines}    sasl.password: ${{env:KAFKA_PASSWORD}}\n",
    )
    path.write_text(text)
    return stream


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)


@pytest.mark.parametrize(("refused_topic", "what"), [("theirs", "theirs[0]"), ("hidden", "describing topics hidden")])
def test_a_writer_without_permission_for_its_topic_ends_with_an_explanation(
    source: Source, stream: DeclaredStream, refused_topic: str, what: str
) -> None:
    refused = declared(stream, source, "PLAIN", refused_topic)
    with pytest.raises(AccessDenied) as error:
        refused.catch_up()
    text = str(error.value)
    assert f"stream {stream.name}: brokers {refused.bootstrap}: Kafka refuses" in text
    assert what in text
    assert "authorization failed. Check source.properties and the ACLs: kafka-acls.sh --add" in text


def test_a_topic_with_describe_but_no_read_permission_is_reported_before_a_writer_starts(
    source: Source, stream: DeclaredStream
) -> None:
    requested = declared(stream, source, "PLAIN", source.of_others)
    spec = load_stream(requested.streams / f"{requested.name}.yaml")
    found = Connections.check([spec])
    (fault,) = found.faults
    assert fault.problem.headline == (
        f"{requested.name}: source: AccessDenied: brokers {requested.bootstrap}: Kafka refuses to "
        "let the stream read theirs"
    )
    assert fault.problem.remedy.startswith("Grant Read on them: kafka-acls.sh")
    assert fault.problem.remedy.endswith("--operation Describe --operation Read --topic NAME")

    whole, reads = JsonFormat(envelope=Envelope(transactions=source.of_others)), (source.topic,)
    reported = spec.model_copy(update={"source": spec.source.model_copy(update={"topics": reads, "format": whole})})
    (fault,) = Connections.check([reported]).faults
    assert "Kafka refuses to let the stream read theirs" in fault.problem.reason, "of transactions"

    admin = source.secured.broker.admin()
    groups = {group.group_id for group in admin.list_consumer_groups().result(30).valid}
    began = time.monotonic()
    check_readable(source.ways["PLAIN"], [(source.topic, 0)], stream="rides", timeout_s=20)
    assert time.monotonic() - began < 15, "the end of a topic is an answer"
    assert {group.group_id for group in admin.list_consumer_groups().result(30).valid} == groups
