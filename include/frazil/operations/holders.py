"""What holds a table's next window back, so that a person can go there: a topic-partition, a stream or a gate. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from frazil.partitions.completeness import Feed, waits_for
from frazil.partitions.windows import Window


@dataclass(frozen=True, slots=True)
class Holder:
    """`kind` is topic-partition, stream or gate; `why` says what is special about it."""

    kind: str
    name: str
    why: str = ""


def holders(feeds: Iterable[Feed], following: Window | None, held: Iterable[str]) -> tuple[Holder, ...]:
    """Of each feed that the following window waits for, what holds it back; and the windows that gates hold.

    Without a following window nothing is complete yet, because a watermark is unknown.
    """
    feeds = tuple(feeds)
    waiting = waits_for(feeds, following) if following else tuple(f for f in feeds if f.watermark_us is None)
    return (*map(_holder, waiting), *(Holder("gate", key) for key in held))


def _holder(feed: Feed) -> Holder:
    if feed.problem:
        return Holder("stream", feed.stream, "does not count")
    if feed.waiting_us is not None and feed.complete_to_us == feed.waiting_us:
        return Holder("stream", feed.stream, "rows wait on a branch")
    if feed.holding_back is not None:
        topic, partition = feed.holding_back
        return Holder("topic-partition", f"{topic}-{partition}")
    return Holder("stream", feed.stream, "has not begun" if feed.watermark_us is None else "is idle")
