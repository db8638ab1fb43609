"""Which topics a stream reads: some by their names, or all whose names match a pattern."""

from __future__ import annotations

import re
from collections.abc import Collection, Container
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicPattern(Container[str]):
    """A regular expression that whole names of topics match. Names that begin with `__` are Kafka's own, and do not."""

    text: str

    def __contains__(self, topic: object) -> bool:
        return isinstance(topic, str) and not topic.startswith("__") and re.fullmatch(self.text, topic) is not None

    def __str__(self) -> str:
        return f"topics that match '{self.text}'"


def named(topics: Collection[str] | TopicPattern, known: Collection[str]) -> tuple[str, ...]:
    """The topics that are declared; with a pattern, those of the `known` that match it."""
    if isinstance(topics, TopicPattern):
        return tuple(sorted(topic for topic in known if topic in topics))
    return tuple(topics)
