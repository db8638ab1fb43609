"""Determines how far a stream is behind Kafka: from the heartbeat of a writer on this host, or from Kafka itself."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaException

from frazil.commit.marker import Marker
from frazil.commit.opened import open_kafka
from frazil.commit.rules import check_same_source
from frazil.errors import FrazilError
from frazil.host.launchers import open_launcher
from frazil.kafka.admin import TIMEOUT_S
from frazil.offsets.spans import count_unread
from frazil.spec.model import StreamSpec
from frazil.supervise.liveness import fresh_heartbeat

logger = logging.getLogger(__name__)


def heartbeat_lag(stream: str, *, now_ms: int) -> int | None:
    """Return the lag that a live writer of the stream on this host reports; None without such a writer."""
    try:
        heartbeat = fresh_heartbeat(open_launcher(stream).observe(), now_ms=now_ms)
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("the run folder of stream %s cannot be read: %r", stream, error)
        return None
    return heartbeat.lag if heartbeat else None


def kafka_lag(spec: StreamSpec, marker: Marker) -> int | str:
    """Return the number of offsets between the marker and the end of Kafka's log, or the reason why it is unknown.

    The lag is unknown if Kafka does not answer within the timeout, or if Kafka's cluster or topic is not the one in the
    marker.
    """
    try:
        with open_kafka(spec, timeout_s=TIMEOUT_S) as kafka:
            found = kafka.describe()
            check_same_source(marker.source, found.identity, stream=spec.name)
            first, ends = kafka.earliest(found.partitions), kafka.ends(found.partitions)
    except (FrazilError, KafkaException) as error:  # the latter for properties that librdkafka refuses
        logger.warning("the lag of stream %s is unknown: %s", spec.name, error)
        return " ".join(str(error).split())
    return count_unread(marker.offsets, first, ends)
