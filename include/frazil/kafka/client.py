"""What all clients of librdkafka share: how their refusals are reported, and where they may be destroyed."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as confluent_admin

from frazil.errors import SpecError

DENIED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)

_left: deque[AdminClient] = deque()


class AdminClient(confluent_admin.AdminClient):
    """An admin client that may be left to the garbage collector while it waits for answers.

    librdkafka aborts the process if a client is destroyed in one of the client's own threads. These run Python when
    an answer arrives or times out, so that the garbage collector may find an unused client there. Such a client is
    kept until a Python thread makes another one.
    """

    def __init__(self, properties: Mapping[str, str | int]) -> None:
        _destroy_left()
        super().__init__(dict(properties))

    def __del__(self) -> None:
        if _is_foreign_thread():
            _left.append(self)


def _destroy_left() -> None:
    if _is_foreign_thread():
        return
    for _ in range(len(_left)):
        with suppress(IndexError):  # another thread does the same
            client = _left.popleft()
            if sys.getrefcount(client) > 2:  # besides `client` and the argument: the collector's thread holds it still
                _left.append(client)
            del client


def _is_foreign_thread() -> bool:
    """Whether a library started this thread, and not Python."""
    return isinstance(threading.current_thread(), threading._DummyThread)


@contextmanager
def client_errors() -> Iterator[None]:
    """Around the creation of a client: if librdkafka refuses, the declared properties are wrong. Raises SpecError."""
    try:
        yield
    except KafkaException as error:
        said = error.args[0].str()
        raise SpecError(f"source.properties: librdkafka refuses them: {said}") from error
