"""What every client of librdkafka shares: how its refusals are told."""

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
    """A client that librdkafka does not make is a mistake in what was declared. Raises SpecError in its words."""
    try:
        yield
    except KafkaException as error:
        said = error.args[0].str()
        raise SpecError(f"source.properties: librdkafka takes them not as they are: {said}") from error
