"""Stops a stream before the commit of a batch with too many dead letters (`dead-letters.circuit`).

An operator may accept rejected records up to certain offsets. Records before these offsets are ignored.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from itertools import chain, zip_longest

from frazil.commit.journal import Journal, JournalStore
from frazil.commit.marker import flatten_topics, keep_same_topics, nest_by_topic
from frazil.commit.stream_tables import StreamTables
from frazil.errors import CircuitOpen
from frazil.ingest.contract import Reject, Rejects
from frazil.offsets.spans import Offsets, SourceIdentity, TopicPartition
from frazil.spec.model import CircuitBreaker, StreamSpec
from frazil.spec.units import format_count

MAX_SAMPLES = 3
MAX_NAMED_PARTITIONS = 5
log = logging.getLogger(__name__)


def check_circuit_breaker(spec: StreamSpec, rejects: Rejects, *, records: int, journals: JournalStore) -> None:
    """Raise `CircuitOpen` if a batch of `records` has more dead letters than `dead-letters.circuit` allows."""
    if (circuit := spec.dead_letters.circuit) == "off":
        return
    if (reason := reason_to_open(rejects, records=records, circuit=circuit)) is not None:
        last_batch = next((j for j in journals.records(newest_first=True) if j.records + j.rejected), None)
        raise CircuitOpen(circuit_open_message(spec.name, reason, rejects, last_batch=last_batch))


def reason_to_open(rejects: Rejects, *, records: int, circuit: CircuitBreaker) -> str | None:
    """Return why the circuit breaker opens, with the share of new dead letters; None if it stays closed."""
    rejected, total = rejects.total, records + rejects.total
    if total < circuit.at_least or rejected * 100 <= circuit.share * total:
        return None
    share = f"{rejected:,} of {format_count(total, 'record')} ({_percent(rejected, total)})"
    return f"{share} would be dead letters, more than {circuit.share} %"


def circuit_open_message(stream: str, reason: str, rejects: Rejects, *, last_batch: Journal | None) -> str:
    reasons = ", ".join(f"{name} {count:,}" for name, count in rejects.counts.items())
    locations = ", ".join(map(_location, rejects.first[:MAX_NAMED_PARTITIONS]))
    if (hidden := len(rejects.first) - MAX_NAMED_PARTITIONS) > 0:
        locations += f" and in {format_count(hidden, 'more partition')}"
    # A few dead letters of each error class in turn, beginning with the most frequent class.
    by_class = [[r for r in rejects.samples if r.error_class == name] for name in rejects.counts]
    samples = [r for r in chain.from_iterable(zip_longest(*by_class)) if r is not None][:MAX_SAMPLES]
    previous = ""
    if last_batch is not None and (total := last_batch.records + last_batch.rejected):
        previous = f"In the previous batch, the share was {_percent(last_batch.rejected, total)}. "
    return (
        f"stream {stream!r} stops before a commit: {reason} (dead-letters.circuit). {previous}"
        f"Reasons: {reasons}. If the declaration is wrong, correct it: the batch is read again. If the producer was "
        f"wrong: `frazil resume {stream} --accept` stores its records up to now as dead letters; `frazil reset "
        f"{stream} --to latest` skips the records that Kafka has now. First at {locations}. "
        + " | ".join(f"{_location(r)} {r.error_class}: {r.error.rstrip('.')}" for r in samples)
    )


def _location(reject: Reject) -> str:
    return f"{reject.topic}[{reject.partition}]@{reject.offset}"


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else "0 %"


@dataclass(frozen=True, slots=True)
class AcceptedRejects:
    offsets: Offsets
    source: SourceIdentity
    by: str
    reason: str
    at_ms: int


def store_acceptance(tables: StreamTables, accepted: AcceptedRejects) -> None:
    source = {"cluster-id": accepted.source.cluster_id, "topic-ids": dict(accepted.source.topic_ids)}
    acceptance = {"by": accepted.by, "reason": accepted.reason, "at-ms": accepted.at_ms}
    text = json.dumps({"offsets": nest_by_topic(accepted.offsets), **source, **acceptance})
    tables.store.put(_path(tables.journals), text.encode())


def accepted_offsets(tables: StreamTables, source: SourceIdentity) -> dict[TopicPartition, int]:
    """Return the offsets up to which an operator has accepted rejected records. Omits recreated topics."""
    acceptance = read_acceptance(tables.journals, tables.stream)
    return keep_same_topics(acceptance.offsets, acceptance.source, source) if acceptance else {}


def read_acceptance(journals: JournalStore, stream: str) -> AcceptedRejects | None:
    """Return the last acceptance of rejected records; None without one, or if it is malformed."""
    data = journals.store.get(_path(journals))
    if data is None:
        return None
    try:
        raw = json.loads(data)
        source = SourceIdentity(raw["cluster-id"], raw["topic-ids"])
        return AcceptedRejects(flatten_topics(raw["offsets"]), source, raw["by"], raw["reason"], raw["at-ms"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning(
            "%s is malformed (%r), so no rejected record counts as accepted. Run `frazil resume %s --accept` again",
            _path(journals),
            error,
            stream,
        )
        return None


def _path(journals: JournalStore) -> str:
    return f"{journals.state}/accepted-rejects.json"
