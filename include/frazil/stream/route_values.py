"""Maps the values of a route to tables, for writers and for dry runs. Dry runs create no tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from frazil.ingest.contract import Destinations, Target
from frazil.spec.model import StreamSpec
from frazil.spec.route import Route


@dataclass(slots=True)
class RouteValues:
    """The known values of a stream's route."""

    spec: StreamSpec
    route: Route
    targets: dict[str, Target] = field(default_factory=dict, init=False)
    refused: dict[str, str] = field(default_factory=dict, init=False)
    """Reasons why values have no table, by value."""
    unread: set[Target] = field(default_factory=set, init=False)
    """Tables of the template that could not be loaded. Their route values are unknown."""

    @property
    def created_count(self) -> int:
        """Number of tables that the template has created, or may have created."""
        return len(self.targets.keys() - self.route.tables.keys()) + len(self.unread - set(self.targets.values()))

    def find_new(self, values: Iterable[str]) -> list[str]:
        """Return the values without a table that may have one, up to the route's limit."""
        new = sorted({value for value in values if value not in self.targets and value not in self.refused})
        return new[: max(0, self.route.limit - self.created_count)]

    def refuse_foreign(self, value: str, identifier: Target) -> None:
        """Refuse a value whose table exists, but was not created by the route."""
        self.refused[value] = (
            f"{identifier} exists, but was not created for this value. To write the rows there, add the table to "
            "route.tables"
        )

    def destinations(self) -> Destinations:
        """Return how rows are assigned to tables."""
        full = (
            f"route.limit is {self.route.limit}, and the writer has created that many tables. Raise it, or give the "
            "value a table in route.tables; then replay its dead letters"
        )
        is_full = self.created_count >= self.route.limit
        return Destinations.of(self.route, self.targets, refused=self.refused, full=full if is_full else "")
