"""A stream's marker: its position, stored as the table property `frazil.stream.<name>`. Nothing else records a stream's
progress. Each commit that changes a marker also adds a snapshot, and requires the branch's previous snapshot.
Concurrent writers therefore cannot overwrite a marker.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from frazil.errors import AdoptionRequired, MarkerUnreadable
from frazil.offsets.spans import Offsets, SourceIdentity, Span, TopicPartition

T = TypeVar("T")

FORMAT_VERSION = 1
PROPERTY_PREFIX = "frazil.stream."
MAX_EPOCHS = 256
"""Maximum number of epochs in the marker (3 KB)."""


class BatchKey(NamedTuple):
    """The permanent name of a batch. Epochs never repeat; batches count up within an epoch."""

    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.batch}"


class BatchOutcome(Enum):
    """Whether a batch of an earlier epoch was committed."""

    COMMITTED = "the batch is in the table"
    NOT_COMMITTED = "the batch is not in the table"
    UNKNOWN = "the epoch is older than the epochs that the marker keeps"


class LastTransaction(NamedTuple):
    """A captured database's last transaction before a position. It shows which events are sent again."""

    id: str = ""
    position: str | None = None
    """The position in the source's log; see `frazil.ingest.source_log`."""


NO_TRANSACTION = LastTransaction()


class OwnTable(NamedTuple):
    """The table that a stream writes to, according to its dead-letter table."""

    name: str
    location: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Marker:
    """One stream's position. Offsets are the next offsets to read; event times are in microseconds since 1970, UTC."""

    stream: str
    key: BatchKey
    """The epoch that owns the stream, and the last batch of this epoch (0 is the take-over itself)."""
    settled: BatchKey | None
    """The key of the last committed journal. Later journals may not be committed yet."""
    offsets: Offsets
    source: SourceIdentity
    max_event_times_us: Mapping[TopicPartition, int] = field(default_factory=dict)
    idle: frozenset[TopicPartition] = frozenset()
    watermark_us: int | None = None
    snapshot_id: int = -1
    sequence_number: int = -1
    batches: Mapping[int, int] = field(default_factory=dict)
    """The last batch that each of the newest epochs committed; 0 if the epoch committed no batch."""
    open_snapshot_id: int | None = None
    """The head of the stream's open branch (`commit.align: watermark`)."""
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The leader epochs of the records before the offsets. A truncated log has other leader epochs."""
    rewritten: Mapping[TopicPartition, tuple[Span, ...]] = field(default_factory=dict)
    """Offsets that Kafka assigned to a second record, after a truncation or in a recreated topic."""
    landed: Offsets = field(default_factory=dict)
    """The end of the table's records, at the last reset, in partitions that were recreated or truncated."""
    given_up: Mapping[TopicPartition, tuple[Span, ...]] = field(default_factory=dict)
    """Committed offsets that a rollback removed. An operator accepted their loss."""
    given_up_epoch: int = 0
    """The epoch of the first reset that accepted a loss in `given_up`, if known."""
    adopted_rows: int = 0
    transaction: LastTransaction = NO_TRANSACTION
    routed: BatchKey | None = None
    """The last batch up to which all routed tables are complete; None if the stream never had a route."""
    own_table: OwnTable | None = None
    """The stream's own table; only in the dead-letter table's marker."""
    dead_letters: BatchKey | None = None
    """The last batch with dead letters; only in the default table's marker."""

    @property
    def property_name(self) -> str:
        return property_name(self.stream)

    @property
    def watermark_ms(self) -> int | None:
        return None if self.watermark_us is None else self.watermark_us // 1000

    def with_snapshots(self, snapshot_id: int, sequence_number: int, *, open_snapshot_id: int | None) -> Marker:
        return dataclasses.replace(
            self, snapshot_id=snapshot_id, sequence_number=sequence_number, open_snapshot_id=open_snapshot_id
        )

    def with_epoch(self, epoch: int) -> Marker:
        batches = {**self.batches, epoch: 0}
        newest = sorted(batches)[-MAX_EPOCHS:]
        return dataclasses.replace(self, key=BatchKey(epoch, 0), batches={e: batches[e] for e in newest})

    def with_batch(self, journal: BatchKey) -> Marker:
        """Return the marker after this batch, which may belong to an earlier epoch."""
        key, batches = BatchKey(self.key.epoch, self.key.batch + 1), {**self.batches, journal.epoch: journal.batch}
        return dataclasses.replace(self, key=key, settled=journal, batches=batches)

    def outcome_of(self, key: BatchKey) -> BatchOutcome:
        """Return whether a batch of an earlier epoch was committed. An epoch commits its batches in order."""
        if not self.batches or key.epoch < min(self.batches):
            return BatchOutcome.UNKNOWN
        return BatchOutcome.COMMITTED if key.batch <= self.batches.get(key.epoch, 0) else BatchOutcome.NOT_COMMITTED

    def has_committed(self, key: BatchKey) -> bool:
        """Return whether a batch, up to the settled one, was committed. An unknown outcome counts as committed."""
        is_settled = self.settled is not None and key <= self.settled
        return is_settled and self.outcome_of(key) is not BatchOutcome.NOT_COMMITTED

    def to_property(self) -> str:
        return json.dumps(
            {
                "format": FORMAT_VERSION,
                "epoch": self.key.epoch,
                "batch": self.key.batch,
                "settled": self.settled,
                "offsets": nest_by_topic(self.offsets),
                "max-event-times-us": nest_by_topic(self.max_event_times_us),
                "idle": nest_by_topic(dict.fromkeys(self.idle, 1)),
                "watermark-us": self.watermark_us,
                "cluster-id": self.source.cluster_id,
                "topic-ids": dict(self.source.topic_ids),
                "snapshot-id": self.snapshot_id,
                "sequence-number": self.sequence_number,
                "batches": dict(sorted(self.batches.items())),
                **({} if self.open_snapshot_id is None else {"open-snapshot-id": self.open_snapshot_id}),
                **({"leader-epochs": nest_by_topic(self.leader_epochs)} if self.leader_epochs else {}),
                **({"rewritten": nest_by_topic(self.rewritten)} if self.rewritten else {}),
                **({"landed": nest_by_topic(self.landed)} if self.landed else {}),
                **({"adopted-rows": self.adopted_rows} if self.adopted_rows else {}),
                **({"given-up": nest_by_topic(self.given_up)} if self.given_up else {}),
                **({"given-up-epoch": self.given_up_epoch} if self.given_up_epoch else {}),
                **({"transaction": self.transaction} if self.transaction.id else {}),
                **({"routed": self.routed} if self.routed else {}),
                **({"own-table": self.own_table} if self.own_table else {}),
                **({"dead-letters": self.dead_letters} if self.dead_letters else {}),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_property(cls, stream: str, text: str) -> Marker:
        """Parse a marker. Raises `MarkerUnreadable` for a newer format or other text."""
        try:
            raw = json.loads(text)
            if raw["format"] != FORMAT_VERSION:
                raise MarkerUnreadable(
                    f"the marker of stream {stream!r} has format {raw['format']}, but this version of frazil reads "
                    f"format {FORMAT_VERSION}: run the version that wrote it, or a newer one"
                )
            return cls(
                stream=stream,
                key=BatchKey(raw["epoch"], raw["batch"]),
                settled=BatchKey(*raw["settled"]) if raw["settled"] else None,
                offsets=flatten_topics(raw["offsets"]),
                source=SourceIdentity(raw["cluster-id"], raw["topic-ids"]),
                max_event_times_us=flatten_topics(raw["max-event-times-us"]),
                idle=frozenset(flatten_topics(raw["idle"])),
                watermark_us=raw["watermark-us"],
                snapshot_id=raw["snapshot-id"],
                sequence_number=raw["sequence-number"],
                batches={int(epoch): batch for epoch, batch in raw["batches"].items()},
                open_snapshot_id=raw.get("open-snapshot-id"),
                leader_epochs=flatten_topics(raw.get("leader-epochs", {})),
                rewritten=_parse_spans(raw.get("rewritten", {})),
                landed=flatten_topics(raw.get("landed", {})),
                given_up=_parse_spans(raw.get("given-up", {})),
                given_up_epoch=raw.get("given-up-epoch", 0),
                adopted_rows=raw.get("adopted-rows", 0),
                transaction=LastTransaction(*raw.get("transaction", ())),
                routed=BatchKey(*raw["routed"]) if raw.get("routed") else None,
                own_table=OwnTable(*raw["own-table"]) if raw.get("own-table") else None,
                dead_letters=BatchKey(*raw["dead-letters"]) if raw.get("dead-letters") else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MarkerUnreadable(
                f"the table property {property_name(stream)!r} is not a marker ({error!r}): it was edited by hand. "
                f"Restore it, or run `frazil reset {stream}` to choose a position"
            ) from error


def open_branch_name(stream: str) -> str:
    return f"frazil-open-{stream}"


def property_name(stream: str) -> str:
    return PROPERTY_PREFIX + stream


def read_marker(properties: Mapping[str, str], stream: str) -> Marker | None:
    """Return the stream's marker from a table's properties, if any. Raises `MarkerUnreadable`."""
    text = properties.get(property_name(stream))
    return None if text is None else Marker.from_property(stream, text)


def require_own_marker(stream: str, marker: Marker | None) -> Marker:
    """Return the stream's marker in the default table. Raises AdoptionRequired if it is None."""
    if marker is None:
        message = f"stream {stream!r} has no marker: nothing is committed yet. Start the stream: `frazil run {stream}`"
        raise AdoptionRequired(message)
    return marker


def try_read_marker(properties: Mapping[str, str], stream: str) -> Marker | None:
    try:
        return read_marker(properties, stream)
    except MarkerUnreadable:
        return None


def nest_by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """Return `{(topic, partition): value}` as nested JSON, sorted so that equal markers have equal text."""
    nested: dict[str, dict[str, T]] = {}
    for (topic, partition), value in sorted(values.items(), key=itemgetter(0)):
        nested.setdefault(topic, {})[str(partition)] = value
    return nested


def flatten_topics(values: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {tp: int(value) for tp, value in _flat_items(values)}


def _parse_spans(values: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, tuple[Span, ...]]:
    return {tp: tuple((start, end) for start, end in spans) for tp, spans in _flat_items(values)}


def _flat_items(values: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[TopicPartition, Any]]:
    return (((topic, int(part)), value) for topic, parts in values.items() for part, value in parts.items())


def keep_topics(values: Mapping[TopicPartition, int], topics: Container[str]) -> dict[TopicPartition, int]:
    return {tp: value for tp, value in values.items() if tp[0] in topics}


def first_marker(stream: str, *, epoch: int, offsets: Offsets, source: SourceIdentity) -> Marker:
    """Return a stream's first marker. It names no earlier epochs, so their journals are never committed."""
    return Marker(stream, BatchKey(epoch, 0), settled=None, offsets=dict(offsets), source=source, batches={epoch: 0})


def merge_identities(stored: SourceIdentity, current: SourceIdentity) -> SourceIdentity:
    """Return the current identity, with the ids of topics in this cluster that the stream no longer reads."""
    earlier_ids = stored.topic_ids if stored.cluster_id == current.cluster_id else {}
    return SourceIdentity(current.cluster_id, {**earlier_ids, **current.topic_ids})


def keep_same_topics(
    offsets: Offsets, stored: SourceIdentity | None, current: SourceIdentity
) -> dict[TopicPartition, int]:
    """Return the offsets that are still valid in `current`. Omits other clusters and recreated topics."""
    if stored is None or stored.cluster_id != current.cluster_id:
        return {}
    return {
        (topic, partition): offset
        for (topic, partition), offset in offsets.items()
        if stored.topic_ids.get(topic) == current.topic_ids.get(topic, stored.topic_ids.get(topic))
    }


def landed_ends(marker: Marker, main: Marker) -> dict[TopicPartition, int]:
    """Return the offset at which a table's records end, for each partition that was recreated or truncated."""
    reached = keep_same_topics(marker.offsets, marker.source, main.source)
    return {tp: max(end, reached.get(tp, 0)) for tp, end in main.landed.items()}


def read_markers(properties: Mapping[str, str]) -> dict[str, Marker]:
    """Return all markers in the table, by stream, even of undeclared streams. Raises `MarkerUnreadable`."""
    return {
        stream: Marker.from_property(stream, properties[property_name(stream)]) for stream in marked_streams(properties)
    }


def marked_streams(properties: Mapping[str, str]) -> list[str]:
    """Return the streams that have a marker in the table."""
    return [name.removeprefix(PROPERTY_PREFIX) for name in properties if name.startswith(PROPERTY_PREFIX)]
