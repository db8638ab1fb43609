"""Finds the topic partitions, streams and quality gates that delay a table's next window. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from frazil.partitions.completeness import Feed, feeds_behind
from frazil.partitions.windows import Window


@dataclass(frozen=True, slots=True)
class Holder:
    """One reason why the next window is not complete. `kind` is topic-partition, stream or gate; `why` is a detail."""

    kind: str
    name: str
    why: str = ""


def holders(feeds: Iterable[Feed], following: Window | None, held: Iterable[str]) -> tuple[Holder, ...]:
    """Return a reason for each feed that delays the next window, then for each window that a gate holds.

    `following` is the next window; None while a watermark is unknown.
    """
    feeds = tuple(feeds)
    waiting = feeds_behind(feeds, following) if following else tuple(f for f in feeds if f.watermark_us is None)
    return (*map(_holder, waiting), *(Holder("gate", key) for key in held))


def _holder(feed: Feed) -> Holder:
    if feed.problem:
        return Holder("stream", feed.stream, "cannot be read")
    if feed.waiting_us is not None and feed.complete_until_us == feed.waiting_us:
        return Holder("stream", feed.stream, "has rows on a branch")
    if feed.holding_back is not None:
        topic, partition = feed.holding_back
        return Holder("topic-partition", f"{topic}-{partition}")
    return Holder("stream", feed.stream, "has not started" if feed.watermark_us is None else "is idle")
