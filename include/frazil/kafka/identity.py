"""The identity of the Kafka cluster and topics that a stream reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Identifies a Kafka: offsets mean nothing in another cluster, or in a recreated topic."""

    cluster_id: str
    topic_ids: Mapping[str, str]
