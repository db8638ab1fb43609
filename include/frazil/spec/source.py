"""The model of a stream's source of records, and patterns of topics."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import re2
from pydantic import Field, field_validator

from frazil.spec.addresses import find_servers_problem
from frazil.spec.column import Columns
from frazil.spec.formats import Format, Header, JsonFormat, Key
from frazil.spec.values import Model, Names, Properties, Start, YamlForm, checked

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


def compile_pattern(text: str) -> Any:
    """Compile a pattern with RE2, which takes linear time.

    Python's `re` may backtrack forever while it holds the interpreter's lock.
    """
    try:
        return re2.compile(text, _OPTIONS)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else "it is not UTF-8"
        raise ValueError(
            f"is not a regular expression that RE2 supports: {reason}. RE2 has no look-around, back references, "
            "possessive quantifiers or counts above 1000"
        ) from None


def find_topic_name_problem(topic: str) -> str | None:
    """Return why Kafka allows no topic of this name, beginning with the name; None if it does."""
    if re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
        return None
    return f"{topic!r}; Kafka allows 1 to 249 letters, digits, '.', '_' and '-'"


class Source(Model):
    """The source of records."""

    bootstrap_servers: str = Field(min_length=1)
    """The brokers, `host:port` separated by commas."""
    topics: Annotated[Names, YamlForm("topic, or list of topics")] = Field(default=(), min_length=1)
    """The topics to read into one table."""
    topic_pattern: Annotated[str, Field(min_length=1), checked(compile_pattern)] | None = None
    """Instead of `topics`: an RE2 pattern of whole topic names. New topics are read from their beginning."""
    format: Format = JsonFormat()
    """How a record's value is encoded."""
    columns: Columns = Field(default=(), alias="schema")
    """The fields of a record, if there is a `transform`. Declared like `schema`; by default, the fields of `schema`."""
    key: Key | None = None
    """The column that stores a record's key."""
    headers: Annotated[tuple[Header, ...], YamlForm("list of headers")] = ()
    """The columns that store headers: `{name: …, column: …}`."""
    start: Start = "earliest"
    """The position at which a new stream begins. Later starts continue from the marker."""
    on_gap: Literal["fail", "skip"] = "fail"
    """If retention deleted unread records, or the log was truncated: `fail` ends the writer; `skip` continues, and
    records the lost offsets in the snapshot's summary.
    """
    properties: Properties = Field(default_factory=dict)
    """librdkafka's consumer properties. Secrets must be references."""

    @property
    def reads(self) -> tuple[str, ...] | TopicPattern:
        """The topics that the stream reads, as a container: `topic in source.reads`."""
        return self.topics if self.topic_pattern is None else TopicPattern(self.topic_pattern)

    @property
    def topics_text(self) -> str:
        return ", ".join(self.topics) or str(self.reads)

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _refuse_list(cls, value: object) -> object:
        if isinstance(value, list):
            texts = ",".join(part if isinstance(part, str) else "" for part in value)
            if find_servers_problem(texts):
                texts = "host:port,host:port"  # what was written may hold credentials
            raise ValueError(f"is a list; write one string, with commas: {texts}")  # noqa: TRY004
        return value

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for topic in value:
            if problem := find_topic_name_problem(topic):
                raise ValueError(f"names the topic {problem}")
        if len(set(value)) < len(value):
            raise ValueError("names a topic twice")
        return value


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
