"""Stores the offsets up to which an operator has accepted rejected records, as one object in the stream's state folder.
The circuit breaker ignores these records.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from frazil.commit.marker import flatten_topics, keep_same_topics, nest_by_topic
from frazil.commit.stream_tables import StreamTables
from frazil.kafka.identity import SourceIdentity
from frazil.offsets.spans import TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AcceptedRejects:
    offsets: Mapping[TopicPartition, int]
    source: SourceIdentity
    by: str
    reason: str
    at_ms: int


def store_acceptance(tables: StreamTables, accepted: AcceptedRejects) -> None:
    text = json.dumps(
        {
            "offsets": nest_by_topic(accepted.offsets),
            "cluster-id": accepted.source.cluster_id,
            "topic-ids": dict(accepted.source.topic_ids),
            "by": accepted.by,
            "reason": accepted.reason,
            "at-ms": accepted.at_ms,
        }
    )
    tables.store.put(_path(tables), text.encode())


def accepted_offsets(tables: StreamTables, source: SourceIdentity) -> dict[TopicPartition, int]:
    """Return the offsets before which rejected records are accepted. Omits recreated topics."""
    found = _read(tables)
    return keep_same_topics(found.offsets, found.source, source) if found else {}


def _read(tables: StreamTables) -> AcceptedRejects | None:
    data = tables.store.get(_path(tables))
    if data is None:
        return None
    try:
        raw = json.loads(data)
        source = SourceIdentity(raw["cluster-id"], raw["topic-ids"])
        return AcceptedRejects(flatten_topics(raw["offsets"]), source, raw["by"], raw["reason"], raw["at-ms"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning(
            "%s is malformed (%r), so no rejected record counts as accepted. Run `frazil resume STREAM --accept` again",
            _path(tables),
            error,
        )
        return None


def _path(tables: StreamTables) -> str:
    return f"{tables.state}/accepted-rejects.json"
