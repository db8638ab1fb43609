"""Sums the resources that streams used, from their commit records, and computes the price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pydantic import Field, ValidationError

from frazil.commit.journal import BatchCost, JournalStore
from frazil.errors import SpecError
from frazil.spec.model import StreamSpec
from frazil.spec.values import Model
from frazil.spec.yaml_file import read_mapping
from frazil.table.branches import summary_value
from frazil.table.catalogs import find_table
from frazil.table.declared_tables import load_route_tables
from frazil.table.lost_tables import open_stream_catalog
from frazil.table.tables import load_stream_table
from frazil.timetext import format_day

PRICES_VARIABLE = "FRAZIL_PRICES"


class Prices(Model):
    """Prices in one currency. The defaults are list prices of AWS in us-east-1, in US dollars."""

    currency: str = "$"
    cpu_hour: float = Field(0.04, ge=0)
    thousand_writes: float = Field(0.005, ge=0)
    """Price of a thousand requests that write or list objects."""
    thousand_reads: float = Field(0.0004, ge=0)
    gigabyte_month: float = Field(0.023, ge=0)
    """Price of a gigabyte (10^9 bytes) that is stored for 30 days."""

    @classmethod
    def load(cls, path: Path) -> Prices:
        try:
            return cls.model_validate(read_mapping(path))
        except ValidationError as error:
            raise SpecError(f"{path} is not a valid file of prices: {error}") from error

    def format(self, price: float) -> str:
        return f"{self.currency}{price:,.4f}"


@dataclass(frozen=True, slots=True)
class StreamCost:
    commits: int = 0
    cpu_s: float = 0.0
    writes: int = 0
    reads: int = 0
    written_bytes: int = 0

    def __add__(self, other: StreamCost) -> StreamCost:
        return StreamCost(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def price(self, prices: Prices) -> float:
        requests = self.writes * prices.thousand_writes + self.reads * prices.thousand_reads
        return self.cpu_s / 3600 * prices.cpu_hour + requests / 1000


@dataclass(frozen=True, slots=True)
class CostReport:
    stream: str
    owner: str
    days: dict[str, StreamCost]
    stored_bytes: int
    """The current size of all tables of the stream."""

    def storage_price(self, prices: Prices, period: timedelta) -> float:
        return self.stored_bytes / 1e9 * prices.gigabyte_month * (period / timedelta(days=30))


def cost_of(spec: StreamSpec, *, since_ms: int) -> CostReport:
    """Return the cost of a stream's commits since then. Raises TableLost, and the catalog's errors."""
    owner, table = spec.owner or "", load_stream_table(spec)
    if table is None:
        open_stream_catalog(spec)  # a lost table has a cost
        return CostReport(spec.name, owner, {}, 0)
    journals = JournalStore.of_table(table, spec.name)
    days: dict[str, StreamCost] = {}
    for day, cost in _costs(journals, since_ms):
        days[day] = days.get(day, StreamCost()) + cost
    routed = load_route_tables(table.catalog, spec.sinks).values()
    tables = (table, *routed, find_table(table.catalog, spec.dead_letter_table))
    stored = sum(int(summary_value(table.current_snapshot(), "total-files-size") or 0) for table in tables if table)
    return CostReport(spec.name, owner, days, stored)


def _costs(journals: JournalStore, since_ms: int) -> Iterator[tuple[str, StreamCost]]:
    for journal in journals.records(newest_first=True):
        if journal.created_at_ms < since_ms:
            return
        cost, written = journal.cost or BatchCost(), sum(file.bytes for file in journal.files)
        yield format_day(journal.created_at_ms), StreamCost(1, cost.cpu_ms / 1000, cost.writes, cost.reads, written)
