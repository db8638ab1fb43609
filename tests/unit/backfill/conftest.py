from __future__ import annotations

from typing import Any

import pytest

from tests.unit.commit.conftest import catalog, world

__all__ = ["catalog", "world"]


@pytest.fixture
def live(world: Any) -> Any:
    """A stream that began at offset 100 of both partitions, and has read ten records of each."""
    world.starts = {("events", 0): 100, ("events", 1): 100}
    world.committer = world.begin()
    world.run(world.committer, {0: (100, 110), 1: (100, 110)})
    return world
