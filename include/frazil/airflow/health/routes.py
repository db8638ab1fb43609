"""The shape of the tables that routes have made, up to thousands: each run measures some of them in turn.

The alerts are the route's, one for each rule: they say how many of its tables are beyond the threshold, and name some.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

from frazil.errors import FrazilError
from frazil.maintenance.alert_rules import Reading, readings
from frazil.maintenance.load import MadeElsewhere
from frazil.maintenance.measure import measure
from frazil.maintenance.routed import made_tables
from frazil.maintenance.unmeasured import RULE as UNMEASURED
from frazil.spec.model import StreamSpec
from frazil.spec.units import counted
from frazil.table.catalogs import existing_catalog

log = logging.getLogger(__name__)

RUNS = 12
"""All tables are measured in so many runs: at one in five minutes, in an hour."""
FEWEST = 50
"""So many are measured in each run at least."""
NAMED = 5
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class RouteFindings:
    """What is known of the tables of a route from one run to the next."""

    beyond: Mapping[str, Sequence[str]]
    """By table, the rules whose thresholds it was beyond when it was measured last; tables that are well have none."""
    after: str = ""
    """The table that was measured last."""

    def to_json(self) -> dict[str, Any]:
        return {"after": self.after, "beyond": {table: list(rules) for table, rules in self.beyond.items()}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Anything that `to_json` does not write is left out: others can write to the store as well."""
        after, beyond = value.get("after"), value.get("beyond")
        found = beyond.items() if isinstance(beyond, Mapping) else ()
        sound = {
            table: [rule for rule in rules if isinstance(rule, str)]
            for table, rules in found
            if isinstance(rules, list)
        }
        return cls(sound, after if isinstance(after, str) else "")


def look_on(
    spec: StreamSpec, specs: Sequence[StreamSpec], before: RouteFindings, *, now_ms: int
) -> tuple[RouteFindings, list[Reading]]:
    """Measure the tables whose turn it is, and say what is known of all. Raises what the catalog's listing raises."""
    catalog = existing_catalog(spec.table.catalog)
    tables = made_tables(catalog, spec, specs)
    mine = next_after(before.after, [table.name for table in tables])
    by_name = {table.name: table for table in tables}

    def rules(name: str) -> list[Reading] | None:
        table = by_name[name]
        try:
            found = measure(catalog, table, now_ms=now_ms)
        except MadeElsewhere:
            return None
        except Exception as error:  # whatever a catalog or a storage raises: the others are still measured
            said = f"{type(error).__name__}: {error}" if isinstance(error, FrazilError) else repr(error)
            return [Reading(UNMEASURED, 1, 0, said, f"{name} cannot be measured: {said}")]
        return None if found is None else [*readings(found, table.settings, now_ms=now_ms)]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = dict(zip(mine, pool.map(rules, mine), strict=True))
    for reading in (one for found in seen.values() for one in found or () if one.is_beyond):
        log.warning("%s", reading.sentence)
    known = {name: found for name, found in before.beyond.items() if name in by_name and name not in seen}
    known |= {name: beyond for name, found in seen.items() if (beyond := [r.rule for r in found or () if r.is_beyond])}
    evaluated = {UNMEASURED, *(one.rule for found in seen.values() for one in found or ())}
    evaluated |= {rule for found in known.values() for rule in found}
    after = RouteFindings(known, mine[-1] if mine else "")
    return after, [_reading(spec, rule, known) for rule in sorted(evaluated)]


def next_after(last: str, names: Sequence[str]) -> list[str]:
    """The names whose turn it is, in a circle: after as many runs as `RUNS`, each had its turn."""
    share = max(FEWEST, ceil(len(names) / RUNS))
    ordered = sorted(names)
    return [*(name for name in ordered if name > last), *(name for name in ordered if name <= last)][:share]


def _reading(spec: StreamSpec, rule: str, beyond: Mapping[str, Sequence[str]]) -> Reading:
    names = sorted(name for name, rules in beyond.items() if rule in rules)
    what = "cannot be measured" if rule == UNMEASURED else f"are beyond the threshold of {rule}"
    some = ", ".join(names[:NAMED]) + (", and others" if len(names) > NAMED else "")
    sentence = (
        f"of the tables that the route of stream {spec.name} has made, {len(names):,} {what}: {some}. `frazil health "
        f"{names[0] if names else 'TABLE'}` says more of one. The DAG frazil_maintenance should mend it: see "
        "what its last runs say"
    )
    return Reading(rule, len(names), 0, counted(len(names), "table"), sentence)
