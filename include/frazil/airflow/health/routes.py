"""Measures the tables that routes have created, a share of them in each run. An alert covers a whole route: it gives
the number of tables that exceed the rule's threshold, and names some of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

from frazil.errors import FrazilError
from frazil.maintenance.alerts import UNMEASURED_RULE as UNMEASURED
from frazil.maintenance.alerts import Reading, evaluate_table_rules
from frazil.maintenance.measure import NotMadeByRoute, find_template_tables, measure
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.table.catalogs import open_existing_catalog
from frazil.table.parallel import run_in_parallel

log = logging.getLogger(__name__)

RUNS_PER_ROUND = 60
"""Number of runs that together measure each table once: an hour with a run per minute."""
MIN_TABLES_PER_RUN = 50
MAX_LISTED_TABLES = 5


@dataclass(frozen=True, slots=True)
class RouteFindings:
    """Findings about a route's tables, kept between runs."""

    beyond: Mapping[str, Sequence[str]]
    """The rules whose thresholds each table exceeded at its last measurement. Healthy tables have no entry."""
    after: str = ""
    """The last measured table, after which the next run continues."""

    def to_json(self) -> dict[str, Any]:
        return {"after": self.after, "beyond": {table: list(rules) for table, rules in self.beyond.items()}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`. Ignores invalid content, because other users can write the store."""
        after, beyond = value.get("after"), value.get("beyond")
        found = beyond.items() if isinstance(beyond, Mapping) else ()
        valid = {
            table: [rule for rule in rules if isinstance(rule, str)]
            for table, rules in found
            if isinstance(rules, list)
        }
        return cls(valid, after if isinstance(after, str) else "")


def measure_route_share(
    spec: StreamSpec, specs: Sequence[StreamSpec], before: RouteFindings, *, now_ms: int
) -> tuple[RouteFindings, list[Reading]]:
    """Measure the next share of the route's tables.

    Return the findings about all tables of the route, and a reading for each rule.
    """
    catalog = open_existing_catalog(spec.table.catalog)
    tables = find_template_tables(catalog, spec, specs)
    share = select_share(before.after, [table.name for table in tables])
    by_name = {table.name: table for table in tables}

    def measure_table(name: str) -> list[Reading] | None:
        table = by_name[name]
        try:
            found = measure(catalog, table, now_ms=now_ms)
        except NotMadeByRoute:
            return None
        except Exception as error:  # anything that a catalog or storage raises: the others are still measured
            said = f"{type(error).__name__}: {error}" if isinstance(error, FrazilError) else repr(error)
            return [Reading(UNMEASURED, 1, 0, said, f"{name} cannot be measured: {said}")]
        return None if found is None else [*evaluate_table_rules(found, table.settings, now_ms=now_ms)]

    seen = dict(zip(share, run_in_parallel(measure_table, share), strict=True))
    for reading in (one for found in seen.values() for one in found or () if one.is_beyond):
        log.warning("%s", reading.sentence)
    known = {name: found for name, found in before.beyond.items() if name in by_name and name not in seen}
    known |= {name: beyond for name, found in seen.items() if (beyond := [r.rule for r in found or () if r.is_beyond])}
    evaluated = {UNMEASURED, *(one.rule for found in seen.values() for one in found or ())}
    evaluated |= {rule for found in known.values() for rule in found}
    after = RouteFindings(known, share[-1] if share else "")
    return after, [_reading(spec, rule, known) for rule in sorted(evaluated)]


def select_share(last: str, names: Sequence[str]) -> list[str]:
    """Return the next names to measure, in alphabetical order after `last`, and then from the start."""
    share = max(MIN_TABLES_PER_RUN, ceil(len(names) / RUNS_PER_ROUND))
    ordered = sorted(names)
    return [*(name for name in ordered if name > last), *(name for name in ordered if name <= last)][:share]


def _reading(spec: StreamSpec, rule: str, beyond: Mapping[str, Sequence[str]]) -> Reading:
    names = sorted(name for name, rules in beyond.items() if rule in rules)
    over = f"{'is' if len(names) == 1 else 'are'} over the threshold of {rule}"
    what = "cannot be measured" if rule == UNMEASURED else over
    some = ", ".join(names[:MAX_LISTED_TABLES]) + (", and others" if len(names) > MAX_LISTED_TABLES else "")
    sentence = (
        f"{format_count(len(names), 'table')} of the route of stream {spec.name} {what}: {some}. Run `frazil health "
        f"{names[0] if names else 'TABLE'}`. The DAG frazil_maintenance should fix this: check its last runs"
    )
    return Reading(rule, len(names), 0, format_count(len(names), "table"), sentence)
