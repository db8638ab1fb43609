"""Permanent errors of a client. Any thread may garbage-collect a client."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from frazil.kafka import client as client_module
from frazil.kafka.client import AdminClient, to_access_denied
from tests.polling import eventually

# A process of its own, for librdkafka would abort this one. The server accepts connections and answers nothing.
PROGRAM = """
import gc, socket, threading
from frazil.kafka import client

gc.disable()
server = socket.create_server(("127.0.0.1", 0))
properties = {"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}", "log_level": 0}

class Owner:
    pass

owner = Owner()
owner.itself, owner.client = owner, client.AdminClient(properties)
answer, collected = owner.client.describe_cluster(request_timeout=0.2), threading.Event()
answer.add_done_callback(lambda _: (gc.collect(), print(len(client._unused_clients)), collected.set()))
del owner
assert collected.wait(60)
client.AdminClient(properties)
print(len(client._unused_clients))
"""


def test_a_kafka_client_collected_in_a_librdkafka_thread_is_destroyed_in_a_python_thread():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "0"]), done.stderr


@pytest.mark.parametrize(
    ("code", "text", "check"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error", "source.properties and the ACLs"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed", "source.properties and the ACLs"),
        (KafkaError._SSL, "SSL handshake failed: SSL routines::certificate verify failed: ...", "ssl.*"),
        (KafkaError._SSL, "SSL routines::tlsv1 alert unknown ca: SSL alert number 48", "ssl.*"),
        (KafkaError._SSL, "SSL routines::tlsv13 alert certificate required: SSL alert number 116", "ssl.*"),
        (KafkaError._AUTHENTICATION, 'Failed to acquire SASL OAUTHBEARER token: {"error": "invalid_client"}', "sasl."),
        # What follows may pass, so that a writer waits and starts again.
        (KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: Could not connect to server", None),
        (KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: Service Unavailable", None),
        (KafkaError._SSL, "SSL handshake failed: Disconnected", None),
        (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down", None),
        (KafkaError._TRANSPORT, "Connection refused", None),
    ],
)
def test_an_access_denial_is_distinguished_from_a_temporary_kafka_error(
    code: int, text: str, check: str | None
) -> None:
    found = to_access_denied(code, text, subject="access to t", stream="flights", servers="kafka:9092")
    assert (found is None) == (check is None)
    if check is not None:
        said = str(found)
        assert said.startswith("stream flights: brokers kafka:9092: ")
        assert (text in said, f" Check {check}" in said) == (True, True)


def test_librdkafka_logs_no_informational_lines_unless_they_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []
    monkeypatch.setattr(client_module, "create_client", lambda _, made: levels.append(made["log_level"]))
    AdminClient({})
    AdminClient({"log_level": "7"})
    assert levels == ["5", "7"]


def test_an_old_connection_error_does_not_explain_a_later_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers share clients, and one that did not ask for an hour finds what was wrong then."""
    now_s = time.monotonic()
    monkeypatch.setattr(client_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    client = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    assert eventually(client.connection_errors)
    assert client.connection_errors(), "librdkafka does not repeat it, and no answer has come since"
    now_s += 31
    assert not client.connection_errors()
    client.clear_errors()
    now_s -= 31
    assert not client.connection_errors()
