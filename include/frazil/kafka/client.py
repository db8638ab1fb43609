"""What all clients of librdkafka share: how their refusals are reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

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


@contextmanager
def client_errors() -> Iterator[None]:
    """Around the creation of a client: if librdkafka refuses, the declared properties are wrong. Raises SpecError."""
    try:
        yield
    except KafkaException as error:
        said = error.args[0].str()
        raise SpecError(f"source.properties: librdkafka refuses them: {said}") from error
