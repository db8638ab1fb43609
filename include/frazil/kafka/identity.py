"""Which Kafka cluster and topics a stream reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Which Kafka this is: offsets mean nothing in another cluster, or in a topic made again."""

    cluster_id: str
    topic_ids: Mapping[str, str]
