"""The identity of the Kafka cluster and topics that a stream reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The id of a Kafka cluster and the ids of its topics, by name.

    Offsets are invalid in another cluster, or in a recreated topic.
    """

    cluster_id: str
    topic_ids: Mapping[str, str]
