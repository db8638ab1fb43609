"""The identity of the Kafka cluster and topics that a stream reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Ids of a Kafka cluster and its topics. Offsets are valid only within the same ids."""

    cluster_id: str
    topic_ids: Mapping[str, str]
