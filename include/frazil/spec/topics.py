"""The topics that a stream reads: a list of names, or all topics whose names match a pattern."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


def compile_pattern(text: str) -> Any:
    """Compile a pattern that a user wrote, with RE2. Raises ValueError if RE2 does not support it.

    The time of a match is linear in the length of the string. Python's `re` backtracks: a match may take forever, and
    holds the interpreter's lock, so that SIGTERM cannot end it.
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
    """A regular expression that matches whole topic names. Kafka's internal topics (`__…`) never match."""

    text: str

    def __contains__(self, topic: object) -> bool:
        if not isinstance(topic, str) or topic.startswith("__"):
            return False
        return compile_pattern(self.text).fullmatch(topic) is not None

    def __str__(self) -> str:
        return f"topics that match '{self.text}'"
