"""No reader of main ever sees part of a window of a stream with `commit.align: watermark`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.audit.stream_audit import audit_stream
from tests.unit.commit.aligned import (
    FAR,
    P0,
    P1,
    Aligned,
    aligned_in,
    expire,
)

minutes = st.lists(st.integers(0, 359) | st.none() | st.just(FAR + 5), max_size=3)
steps = st.one_of(
    st.tuples(st.just("batch"), minutes, minutes),
    st.tuples(st.just("batch"), minutes, st.just([])),
    st.sampled_from([("tick", {P0, P1}), ("tick", {P1}), ("take over",), ("crash",), ("compact",), ("append",)]),
    st.sampled_from([("lost",), ("late",), ("meets",), ("fails",), ("expire",)]),
)


@pytest.mark.rotates(2)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=4, max_size=10))
def test_a_reader_of_main_sees_each_window_whole_or_not_at_all(walk: list[Any]) -> None:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="frazil-open-", dir=memory if memory.is_dir() else None))
    stream = aligned_in(folder)
    try:
        for step in [*walk, ("batch", [0], [359]), ("tick", {P0, P1})]:
            take(stream, *step)
            stream.check()
        stream.check_storage()
        assert audit_stream(stream.world.tables).clean
    finally:
        stream.world.catalog.inner.engine.dispose()
        shutil.rmtree(folder)


def take(stream: Aligned, what: str, *more: Any) -> None:
    world = stream.world
    if what == "batch":
        stream.run(*more)
    elif what == "tick":
        stream.run(idle=frozenset(*more))
    elif what == "take over":
        stream.begin()
    elif what == "crash":
        assert world.tables.journals.put(stream.stage([[61], [100, 200]]))
        stream.begin()
    elif what == "append":
        world.foreign_append()
    elif what == "compact":
        if world.rows():
            world.compact()
    elif what == "expire":
        expire(stream)
    else:
        faults = {
            "lost": world.catalog.next_answer_is_lost,
            "late": world.catalog.next_lands_late,
            "meets": lambda: world.catalog.next_meets(world.foreign_append),
            "fails": lambda: world.catalog.next_fails_before(ConnectionError("down")),
        }
        faults[what]()
        stream.run([30, 90], [150])
        world.catalog.land_now()
