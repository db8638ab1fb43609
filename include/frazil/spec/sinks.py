"""The tables that a stream writes to, and what a commit does with the records staged for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from frazil.spec.route import VALUE_PLACEHOLDER, Route, derive_name_part, value_property

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec


RepeatHandling = Literal["no", "by order", "by arrival", "dropped"]
"""How repeated records are handled: as new rows, merged by `order-by` or in order of arrival, or dropped."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What a commit does with staged records."""

    noun: str
    """The noun for a staged record in messages."""
    repeats: RepeatHandling
    merges: bool = True
    """Whether a commit compares staged records with the table's rows."""
    replaces_rows: bool = False
    """Whether a record may change or delete rows, so not every committed record is a row."""
    drops_repeats: bool = False


APPEND = Mode("row", "no", merges=False)
UPSERT = Mode("change", "by arrival", replaces_rows=True)
DEDUPLICATE = Mode("record", "dropped", drops_repeats=True)


@dataclass(frozen=True)  # without slots, for the cached property
class Sinks:
    """The tables of one stream (ADR 26). A batch counts as committed once the default table has it."""

    stream: str
    default_table: str
    dead_letter_table: str
    """The dead-letter table. It is committed first; the default table's epoch fences it."""
    mode: Mode
    key: tuple[str, ...]
    route: Route | None

    @classmethod
    def of(cls, spec: StreamSpec, *, default_table: str) -> Sinks:
        mode = DEDUPLICATE if spec.dedupe else UPSERT if spec.mode == "upsert" else APPEND
        dead_letter_table = spec.dead_letters.table or f"{default_table}_dead_letters"
        key = spec.dedupe.key if spec.dedupe else spec.key
        return cls(spec.name, default_table, dead_letter_table, mode, key, spec.route)

    @cached_property
    def named_tables(self) -> Collection[str]:
        """The tables that the route names, each once. Computed on first use, because a route may name thousands."""
        return dict.fromkeys(self.by_value.values())

    @property
    def has_routed_tables(self) -> bool:
        return self.route is not None

    @property
    def by_value(self) -> Mapping[str, str]:
        return self.route.tables if self.route else {}

    @property
    def template(self) -> str | None:
        return self.route.template if self.route else None

    @property
    def field(self) -> str | None:
        return self.route.name if self.route and self.route.by == "field" else None

    def matches_template(self, identifier: str) -> bool:
        """Return whether a table's name matches the template. Its properties show whether the template created it."""
        prefix, placeholder, suffix = (self.template or "").partition(VALUE_PLACEHOLDER)
        longer = len(identifier) > len(prefix) + len(suffix)
        return bool(placeholder) and longer and identifier.startswith(prefix) and identifier.endswith(suffix)

    def may_include(self, identifier: str) -> bool:
        """Return whether the table may be one of the stream's. Only the table's name is compared."""
        return identifier in {self.default_table, self.dead_letter_table, *self.named_tables} or self.matches_template(
            identifier
        )

    def includes(self, identifier: str, value: str | None) -> bool:
        """Return whether the route names the table, or would create it for this routing value."""
        if self.route is None or value in self.route.tables:
            return identifier in self.named_tables
        return identifier in self.named_tables or (value is not None and self.route.makes(value, identifier))

    def find_value(self, identifier: str, properties: Mapping[str, str]) -> str | None:
        """Return the routing value for which the template created a table; None if the template did not create it."""
        value = properties.get(value_property(self.stream))
        if value is None or self.route is None or self.route.template is None:
            return None
        return value if self.route.derive_table_name(value) == identifier else None

    def owns(self, identifier: str, properties: Mapping[str, str]) -> bool:
        """Return whether a table belongs to the route: the route names the table, or its template created the table."""
        return identifier in self.named_tables or self.find_value(identifier, properties) is not None

    def extract_value(self, identifier: str) -> str | None:
        """Return the routing value of a template's table; None if the table's name does not contain it unchanged."""
        if not self.matches_template(identifier):
            return None
        prefix, _, suffix = (self.template or "").partition(VALUE_PLACEHOLDER)
        value = identifier[len(prefix) : len(identifier) - len(suffix)]
        return value if derive_name_part(value) == value else None
