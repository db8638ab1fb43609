"""Helpers for all clients of librdkafka: checks of properties, errors for refused access, and a safe admin client."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import admin as confluent_admin

from frazil.errors import AccessDenied, KafkaUnavailable, SpecError
from frazil.extras import require_module
from frazil.spec.property_rules import is_secret

DENIED_CODES = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)

_CERTIFICATE_ERROR = re.compile(r"certificate verify failed|SSL routines.*alert .*(certificate|unknown ca)")
_TOKEN_ERROR = "Failed to acquire SASL OAUTHBEARER token"
_TOKEN_REFUSED = re.compile(
    r"invalid_(client|grant|request|scope)|unauthorized_client|unsupported_grant_type|unexpired token"
)
"""Permanent token errors: error codes of RFC 6749, and a text of librdkafka."""

MAX_ERROR_AGE_S = 30.0
"""Maximum age (s) of a connection error that may explain a missing response."""

_UNKNOWN_PROPERTY = ("No such configuration property", "Java ")
"""Start of librdkafka's errors about unknown properties."""
_INVALID_VALUE = "Invalid value"
_UNCHECKED_PROPERTIES = frozenset({"plugin.library.paths", "debug"})
"""Properties that are not checked with a client, because setting them has side effects."""

ACL_COMMAND = "kafka-acls.sh --add --allow-principal User:NAME --operation Describe --operation Read --topic NAME"

_unused_clients: deque[AdminClient] = deque()
"""Clients that were freed in one of librdkafka's threads. Another thread must destroy them."""


def to_access_denied(code: int, text: str, *, subject: str, stream: str | None, servers: str) -> AccessDenied | None:
    """Return AccessDenied if an error permanently refuses `subject`, such as "access to flights"."""
    if _CERTIFICATE_ERROR.search(text):
        problem = f"the TLS connection fails: {text}"
        check = "ssl.* in source.properties, and the authority, host name and expiry of the broker's certificate"
    elif text.startswith(_TOKEN_ERROR):
        if not _TOKEN_REFUSED.search(text):
            return None
        problem = text
        check = "sasl.oauthbearer.* in source.properties, the token server's answer, and this host's clock"
    elif code in DENIED_CODES:
        problem, check = f"Kafka refuses {subject}: {text}", f"source.properties and the ACLs: {ACL_COMMAND}"
    else:
        return None
    return AccessDenied(f"brokers {servers}: {problem}", stream=stream, remedy=f"Check {check}")


class _ConnectionErrors:
    """Collects the errors that `poll` delivers, so that librdkafka's callback does not refer to the client."""

    def __init__(self) -> None:
        self.errors: deque[tuple[float, KafkaError]] = deque(maxlen=20)
        self._polled_s = time.monotonic()

    def add(self, error: KafkaError) -> None:
        self.errors.append((self._polled_s, error))

    def get_recent(self) -> list[KafkaError]:
        self._polled_s = now_s = time.monotonic()
        return [error for at_s, error in self.errors.copy() if now_s - at_s < MAX_ERROR_AGE_S]


class AdminClient(confluent_admin.AdminClient):
    """An admin client that is safe to garbage-collect during a request.

    librdkafka aborts the process if a client is destroyed in one of the client's own threads, where the garbage
    collector may run. Such a client is kept until a Python thread creates another.
    """

    def __init__(self, properties: Mapping[str, str | int]) -> None:
        _destroy_unused_clients()
        self._connection_errors = _ConnectionErrors()
        # Level 6, librdkafka's default, includes lines about its own queues when a client is destroyed. With sparse
        # connections, a request to a broker that refuses connections would try thousands of times per second.
        defaults = {"log_level": "5", "enable.sparse.connections": "false", **properties}
        create_client(super().__init__, {**defaults, "error_cb": self._connection_errors.add})

    def connection_errors(self) -> list[KafkaError]:
        """Return the recent connection errors since the last response, oldest first."""
        self.poll(0)
        return self._connection_errors.get_recent()

    def clear_errors(self) -> None:
        self.connection_errors()
        self._connection_errors.errors.clear()

    def __del__(self) -> None:
        if _is_foreign_thread():
            _unused_clients.append(self)


def _destroy_unused_clients() -> None:
    if _is_foreign_thread():
        return
    for _ in range(len(_unused_clients)):
        with suppress(IndexError):  # another thread does the same
            client = _unused_clients.popleft()
            if sys.getrefcount(client) > 2:  # besides `client` and the argument, the freeing thread refers to it
                _unused_clients.append(client)
            del client


def _is_foreign_thread() -> bool:
    return isinstance(threading.current_thread(), threading._DummyThread)


@contextmanager
def translate_client_errors() -> Iterator[None]:
    """Raise SpecError if librdkafka rejects the declared properties of a new client."""
    try:
        yield
    except KafkaException as error:
        raise SpecError(f"librdkafka rejects source.properties: {error.args[0].str()}") from error


def property_problems(properties: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's error for each invalid property. Needs no broker; skips references and secrets."""
    problems = {}
    for key, value in properties.items():
        if key in {"sasl.mechanism", "sasl.mechanisms"}:
            if problem := _mechanism_problem(value):
                problems[key] = problem
            continue
        is_unchecked = key in _UNCHECKED_PROPERTIES or (key == METHOD and is_function(value))
        problem = "" if is_unchecked else _property_error({key: value})
        is_checked = "${" not in value and not is_secret(key)
        if problem.startswith(_UNKNOWN_PROPERTY) or (problem.startswith(_INVALID_VALUE) and is_checked):
            problems[key] = problem
    return problems


def _mechanism_problem(mechanism: str) -> str:
    if mechanism == "AWS_MSK_IAM":
        return f"is a mechanism of the Java client: write OAUTHBEARER, and {METHOD}: {AWS_MSK}"
    credentials = {"sasl.username": "frazil", "sasl.password": "frazil"}
    problem = _property_error({"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, **credentials})
    if mechanism == "GSSAPI" and problem:
        return (
            "needs Kerberos, which the wheels of confluent-kafka do not support: build confluent-kafka from source "
            "with libsasl2, or use SCRAM, a client certificate or OAUTHBEARER"
        )
    return problem if "${" not in mechanism else ""


def _property_error(properties: Mapping[str, str]) -> str:
    try:
        Consumer({"group.id": "frazil", "log_level": "0", **properties}).close()
    except KafkaException as error:
        return str(error.args[0].str())
    return ""


METHOD, CONFIG = "sasl.oauthbearer.method", "sasl.oauthbearer.config"
"""The function that creates login tokens: `aws-msk`, or `package.module:function`. It takes the text of CONFIG, and
returns a token and its expiry (s since 1970), like confluent-kafka's `oauth_cb`. Tokens are never stored or logged.
"""
AWS_MSK = "aws-msk"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

Client = TypeVar("Client")
TokenFunction = Callable[[str], tuple[Any, ...]]


def is_function(method: str) -> bool:
    """Return whether the method is a Python function. librdkafka has other methods."""
    return method == AWS_MSK or _FUNCTION.fullmatch(method) is not None


def split_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], TokenFunction | None]:
    """Return librdkafka's properties, and the declared token function. Raises SpecError, MissingExtra."""
    method = properties.get(METHOD, "")
    if not is_function(method):
        return dict(properties), None
    return {key: value for key, value in properties.items() if key != METHOD}, _load(method)


def create_client(client: Callable[[dict[str, Any]], Client], properties: Mapping[str, Any]) -> Client:
    """Create a client of confluent-kafka. If a function makes the client's tokens, calls this function first.

    Without a token, the constructor would leave an error that later ends the process. Raises KafkaUnavailable if the
    function fails, and the errors of `split_properties`.
    """
    settings, make_token = split_properties(properties)
    if make_token is None:
        return client(settings)
    config = properties.get(CONFIG, "")
    try:
        tokens = [make_token(config)]
    except Exception as error:
        raise KafkaUnavailable(
            f"{properties[METHOD]} did not create a token for Kafka: {type(error).__name__}: {error}. Check "
            "sasl.oauthbearer.* in source.properties, and the service that the function calls"
        ) from error
    return client({**settings, "oauth_cb": lambda text: tokens.pop() if tokens else make_token(text)})


def _load(method: str) -> TokenFunction:
    if method == AWS_MSK:
        require_module("aws_msk_iam_sasl_signer")
        return _make_msk_token
    module, _, name = method.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"source.properties.{METHOD}: {method} cannot be imported: {error}. Install the module on the hosts of "
            "writers, executors and Airflow's workers"
        ) from error
    return partial(_call_and_check, function, method)


def _call_and_check(function: TokenFunction, method: str, config: str) -> tuple[Any, ...]:
    """Call the user's function, and check its result. Raises ValueError with a text that omits the token."""
    answer = function(config)
    if not (isinstance(answer, tuple) and len(answer) >= 2 and isinstance(answer[0], str)):
        raise ValueError(f"{method} must return a token and its expiry in seconds since 1970")
    return answer


def _make_msk_token(config: str) -> tuple[str, float]:
    """Return an MSK token and its expiry (s since 1970). `config` may have `region=…` and `role=…`."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    options = dict(part.partition("=")[::2] for part in re.split(r"[,\s]+", config) if part)
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ValueError("the AWS region is unknown: write sasl.oauthbearer.config: region=… or set AWS_REGION")
    if role := options.get("role"):
        token, expiry_ms = MSKAuthTokenProvider.generate_auth_token_from_role_arn(region, role)
    else:
        token, expiry_ms = MSKAuthTokenProvider.generate_auth_token(region)
    return token, expiry_ms / 1000
