"""The topics that a stream reads: a list of names, or all topics whose names match a pattern."""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass
from typing import Any

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


def compile_pattern(text: str) -> Any:
    """Compile a user's pattern with RE2. Raises ValueError if RE2 does not support it.

    RE2 takes linear time. Python's `re` may backtrack forever, with the interpreter's lock, so that SIGTERM cannot end
    it.
    """
    try:
        return re2.compile(text, _OPTIONS)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else "it is not UTF-8"
        raise ValueError(
            f"is not a regular expression that RE2 supports: {reason}. RE2 has no look-around, back references, "
            "possessive quantifiers or counts above 1000"
        ) from None


@dataclass(frozen=True, slots=True)
class TopicPattern(Container[str]):
    """Matches whole topic names, but never Kafka's internal topics (`__…`)."""

    text: str

    def __contains__(self, topic: object) -> bool:
        if not isinstance(topic, str) or topic.startswith("__"):
            return False
        return compile_pattern(self.text).fullmatch(topic) is not None

    def __str__(self) -> str:
        return f"topics that match '{self.text}'"


def select_topics(topics: Collection[str] | TopicPattern, known: Collection[str]) -> tuple[str, ...]:
    """Return the declared topics. For a pattern, return the topics in `known` that match it, sorted."""
    if isinstance(topics, TopicPattern):
        return tuple(sorted(topic for topic in known if topic in topics))
    return tuple(topics)
