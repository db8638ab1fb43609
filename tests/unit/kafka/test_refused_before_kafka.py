"""What is refused before Kafka has a word: certificates and tokens, by servers that speak TLS or issue tokens alone.

`tests/e2e/test_kafka_security.py` has a broker, and what that refuses.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest

from frazil.errors import AccessDenied, FrazilError, KafkaUnavailable
from frazil.ingest.contract import OffsetRange
from frazil.ingest.kafka_columns import ColumnReader
from frazil.kafka.admin import KafkaAdmin
from tests.secured_kafka import Authority, TokenServer

pytestmark = [pytest.mark.timeout(60), pytest.mark.processes]


class TlsServers:
    """Servers that shake hands, each with its certificate, and then say nothing."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.stranger = Authority(folder / "authority"), Authority(folder / "stranger")
        issue, trusted = self.authority.issue, self.authority.certificate
        self._end = ExitStack()
        self.addresses = {
            "sound": self._serve(issue("sound")),
            "expired": self._serve(issue("expired", valid_days=-1)),
            "elsewhere": self._serve(issue("elsewhere", host="kafka.example")),
            "mutual": self._serve(issue("mutual"), clients_of=trusted),
        }

    def close(self) -> None:
        self._end.close()

    def _serve(self, certificate: Path, clients_of: Path | None = None) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        if clients_of is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients_of)
        listening = self._end.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        threading.Thread(target=self._accept, args=(listening, context), daemon=True).start()
        return f"127.0.0.1:{listening.getsockname()[1]}"

    def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:  # closed
                return
            accepted.settimeout(5)
            with accepted, suppress(OSError), context.wrap_socket(accepted, server_side=True) as client:
                client.recv(1000)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServers]:
    with closing(TlsServers(tmp_path_factory.mktemp("tls"))) as made:
        yield made


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with TokenServer().serving() as server:
        yield server


def error_of(asks: str, properties: dict[str, str], *, limit_s: float = 30) -> FrazilError:
    properties = {"log_level": "0", **properties}
    with ExitStack() as end:
        if asks == "planner":
            kafka = end.enter_context(KafkaAdmin(properties, ["t"], stream="flights", timeout_s=limit_s))
            ask: Callable[[], object] = kafka.describe
        else:
            ranges = [OffsetRange("t", 0, 0, 5)]
            opened = ColumnReader(properties, ranges, stream="flights", unreachable_limit_s=limit_s)
            ask = partial(list, end.enter_context(opened))
        with pytest.raises(FrazilError) as found:
            ask()
    return found.value


@pytest.mark.parametrize("asks", ["reader", "planner"])
@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("untrusted", "certificate verify failed"),
        ("expired", "certificate verify failed"),
        ("elsewhere", "certificate verify failed"),
        ("mutual", "alert certificate required"),
    ],
)
def test_a_certificate_that_is_refused_is_an_error_at_once(
    servers: TlsServers, server: str, said: str, asks: str
) -> None:
    trusted = servers.stranger if server == "untrusted" else servers.authority
    at = servers.addresses["sound" if server == "untrusted" else server]
    tls = {"bootstrap.servers": at, "security.protocol": "SSL", "ssl.ca.location": str(trusted.certificate)}
    refused = error_of(asks, tls)
    text = str(refused)
    assert isinstance(refused, AccessDenied)
    assert text.startswith(f"stream flights: brokers {at}: the TLS connection fails: ")
    assert said in text
    check = "Check ssl.* in source.properties, and the authority, host name and expiry of the broker's certificate"
    assert text.endswith(check)


def oidc(url: str, client: str) -> dict[str, str]:
    return {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": client,
        "sasl.oauthbearer.client.secret": "any",
        "sasl.oauthbearer.token.endpoint.url": url,
    }


@pytest.mark.parametrize("asks", ["reader", "planner"])
@pytest.mark.parametrize(
    ("client", "said"), [("late", "Must supply an unexpired token"), ("stranger", "invalid_client")]
)
def test_a_token_that_has_expired_or_is_not_issued_is_an_error_at_once(
    tokens: TokenServer, client: str, said: str, asks: str
) -> None:
    refused = error_of(asks, oidc(tokens.url, client))
    text = str(refused)
    assert isinstance(refused, AccessDenied)
    assert text.startswith("stream flights: brokers 127.0.0.1:1: Failed to acquire SASL OAUTHBEARER token: ")
    assert said in text
    assert " Check sasl.oauthbearer.*" in text


@pytest.mark.parametrize("asks", ["reader", "planner"])
def test_an_unavailable_token_server_is_awaited_and_named_at_the_timeout(asks: str) -> None:
    silent = error_of(asks, oidc("http://127.0.0.1:1/token", "any"), limit_s=1)
    assert isinstance(silent, KafkaUnavailable)
    assert "Failed to acquire SASL OAUTHBEARER token: Failed to connect" in str(silent)
