"""Rows that no change touches stay as they are, whatever type, nesting and value they have and wherever that is.

Each table has 16 types in 11 nestings (176 columns), and as many rows as have every value of each: null, empty, nulls
within, and the extremes. An example chooses the type and transform of a partition, the type of a key, and what happens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)

from frazil.ingest.changes import CHANGE, DELETE
from tests.unit.commit.conftest import catalog_in
from tests.unit.commit.valued import CHANGED, EXTREMES, ValuedWorld, valued_world

KEYS = [name for name in EXTREMES if name not in {"float", "double"}]
TRANSFORMS: list[Transform[Any, Any] | None] = [
    None,
    VoidTransform(),
    IdentityTransform(),
    BucketTransform(3),
    TruncateTransform(2),
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
]
PLACES = [
    (name, transform)
    for name, (kind, _) in EXTREMES.items()
    for transform in TRANSFORMS
    if transform is None or transform.can_transform(kind)
]
Rows = list[dict[str, Any]]


def _changes(world: ValuedWorld, n: int) -> Rows:
    """Updates of some of the rows that may change, one that moves to another partition, and a delete."""
    there = [number for number in sorted(world.live) if number >= CHANGED][:4]
    rows = [world.row(number, shift=n + 1) for number in there]
    if rows:
        rows[0] = {**world.live[there[0]], CHANGE: DELETE}
    if rows[1:]:
        rows[1]["p"] = world.row(there[1] + 1)["p"]
    return rows


def _new(world: ValuedWorld, n: int) -> Rows:
    first = CHANGED * (n + 2)
    return [world.row(number) for number in range(first, first + world.rows_of_each)]


HAPPENINGS: Mapping[str, Callable[[ValuedWorld, int], None]] = {
    "append": lambda world, n: world.append(_new(world, n)),
    "copy-on-write": lambda world, n: world.upsert([*_changes(world, n), *_new(world, n)], "copy-on-write"),
    "merge-on-read": lambda world, n: world.upsert([*_changes(world, n), *_new(world, n)], "merge-on-read"),
    "dedupe": lambda world, n: world.dedupe([*(world.live[i] for i in [*world.live][:20]), *_new(world, n)]),
    "open window": lambda world, n: world.wait_and_publish(_new(world, n)),
    "backfill": lambda world, n: world.backfill(_new(world, n)),
    "evolution": lambda world, n: world.evolve(n),
}


@pytest.mark.rotates(2, turn=1)
@pytest.mark.timeout(1_800)
@given(
    place=st.sampled_from(PLACES),
    key=st.sampled_from(KEYS),
    of_key=st.booleans(),
    happens=st.lists(st.sampled_from([*HAPPENINGS]), min_size=2, max_size=4),
)
@example(
    place=("double", IdentityTransform()), key="long", of_key=False, happens=["copy-on-write", "dedupe", "open window"]
)
@example(place=("uuid", IdentityTransform()), key="uuid", of_key=True, happens=["merge-on-read", "evolution", "append"])
@example(place=("date", MonthTransform()), key="date", of_key=True, happens=["dedupe", "copy-on-write", "backfill"])
@settings(
    max_examples=settings().max_examples // 20 or 1,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_rows_that_no_change_touches_stay_as_they_are(place, key, of_key, happens):
    name, transform = place
    key = name if of_key and name in KEYS else key
    with tempfile.TemporaryDirectory() as folder, catalog_in(Path(folder)) as catalog:
        world = valued_world(
            catalog,
            Path(folder),
            place=name,
            transform=transform,
            key=key,
            source="k" if key == name and of_key else "p",
        )
        world.append([world.row(n + first) for first in (0, CHANGED) for n in range(world.rows_of_each)])
        world.check()
        for n, happening in enumerate(happens):
            HAPPENINGS[happening](world, n)
            world.check()
