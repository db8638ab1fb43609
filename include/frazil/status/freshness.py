"""Computes how long a stream's oldest uncommitted record may have waited. Pure; loads no PyIceberg, for DAG files."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.timetext import format_elapsed


class Waiting(Protocol):
    """Facts about waiting records, which a stream's state and a table's measured health have."""

    @property
    def lag(self) -> int | None: ...
    @property
    def caught_up_at_ms(self) -> int | None: ...
    @property
    def last_commit_at_ms(self) -> int | None: ...


def freshness_limit_ms(spec: StreamSpec) -> int:
    return spec.maintenance.stale_after_ms(spec.commit.longest_interval // timedelta(milliseconds=1))


def freshness_ms(stream: Waiting, *, now_ms: int) -> int | None:
    """Return the largest possible age of the oldest waiting record; 0 if none waits, None before the first commit."""
    since_ms = stream.last_commit_at_ms if stream.caught_up_at_ms is None else stream.caught_up_at_ms
    if since_ms is None:
        return None
    return 0 if stream.lag == 0 else max(now_ms - since_ms, 0)


def late_message(stream: Waiting, age_ms: int, *, now_ms: int) -> str:
    commit_ms = stream.last_commit_at_ms
    if stream.caught_up_at_ms is None or stream.lag is None or commit_ms is None:
        waiting = "records may wait" if stream.lag is None else format_count(stream.lag, "record", "waits|wait")
        return f"no commit for {format_elapsed(age_ms)} while {waiting}"
    delay = "1 record has waited" if stream.lag == 1 else f"the oldest of {stream.lag:,} waiting records has waited"
    return f"{delay} for {format_elapsed(age_ms)}; the last commit was {format_elapsed(max(now_ms - commit_ms, 0))} ago"
