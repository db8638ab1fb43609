"""Summarises the new dead letters of a task, so that the driver can decide whether to commit the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import OffsetRange, Reject, Rejects
from frazil.ingest.decode import Rejection
from frazil.offsets.spans import TopicPartition
from frazil.safe_text import escape_unsafe

MAX_SAMPLES = 3
"""Maximum number of samples per error class."""
MAX_SAMPLE_CHARACTERS = 300


class RejectCounter:
    def __init__(self, ranges: Sequence[OffsetRange], accepted: Mapping[TopicPartition, int]) -> None:
        """`accepted` has an offset per topic-partition. Rejected records before it are not counted."""
        self._ranges = ranges
        self._from = [accepted.get((r.topic, r.partition), 0) for r in ranges]
        self._counts: Counter[str] = Counter()
        self._first: dict[int, Reject] = {}
        self._samples: dict[str, list[Reject]] = {}

    def add(self, chunk: RecordChunk, rejections: Iterable[Rejection]) -> None:
        for rejection in rejections:
            index, offset = int(chunk.range_index[rejection.index]), int(chunk.offsets[rejection.index])
            if offset < self._from[index]:
                continue
            self._counts[rejection.error_class] += 1
            first = self._first.get(index)
            samples = self._samples.setdefault(rejection.error_class, [])
            if (first is None or offset < first.offset) or len(samples) < MAX_SAMPLES:
                of = self._ranges[index]
                reject = Reject(
                    of.topic,
                    of.partition,
                    offset,
                    rejection.error_class,
                    escape_unsafe(rejection.error[:MAX_SAMPLE_CHARACTERS].replace("\n", " "), lines=False),
                )
                if first is None or offset < first.offset:
                    self._first[index] = reject
                if len(samples) < MAX_SAMPLES:
                    samples.append(reject)

    def result(self) -> Rejects:
        samples = tuple(reject for few in self._samples.values() for reject in few)
        return join_rejects([Rejects(self._counts, tuple(self._first.values()), samples)])


def join_rejects(parts: Iterable[Rejects]) -> Rejects:
    """Join the summaries of several tasks. The samples of an error class are sorted by topic, partition and offset."""
    counts: Counter[str] = Counter()
    first: dict[TopicPartition, Reject] = {}
    samples: dict[str, list[Reject]] = {}
    for part in parts:
        counts.update(part.counts)
        for reject in part.first:
            at = (reject.topic, reject.partition)
            first[at] = min(first.get(at, reject), reject, key=attrgetter("offset"))
        for reject in part.samples:
            samples.setdefault(reject.error_class, []).append(reject)
    few = (reject for of_class in samples.values() for reject in sorted(of_class, key=_sort_key)[:MAX_SAMPLES])
    return Rejects(dict(counts.most_common()), tuple(sorted(first.values(), key=_sort_key)), tuple(few))


def _sort_key(reject: Reject) -> tuple[str, int, int]:
    return (reject.topic, reject.partition, reject.offset)
