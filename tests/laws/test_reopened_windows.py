"""Whatever two streams of a table do, late rows of each signalled window are reported once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.commit.marker_changes import adopt, forget
from tests.unit.signals.minutes import Minutes

moves = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["minutes", "others"]), st.integers(-2, 5), st.integers(1, 90)),
        st.tuples(st.sampled_from(["check", "forget minutes", "forget others", "uncounted"])),
    ),
    min_size=4,
    max_size=14,
)


@pytest.mark.rotates(2)
@settings(max_examples=max(10, settings().max_examples // 5), suppress_health_check=list(HealthCheck))
@given(moves)
def test_rows_that_land_after_their_windows_signal_reopen_it_once_per_check(moves):
    """Two streams begin, are forgotten and begin again; the commits of one may not report their rows."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAZIL_HOME", f"{folder}/home")
        streams = {name: Minutes(Path(folder), name=name) for name in ("minutes", "others")}
        for stream in streams.values():
            stream.made.begin()
            stream.send(0, 1)
        one, other = streams.values()
        one.signal_with(other)
        since: Counter[str] = Counter()
        revisions: dict[str, int] = {}
        for move, *how in [*moves, ("minutes", 4, 61), ("others", 4, 61), ("check",)]:
            if move in streams:
                first, last = 60 * how[0], 60 * how[0] + how[1]
                streams[move].send(first, last)
                since.update(f"T{12 + m // 60}" for m in range(first, last) if m >= 0)
            elif move == "uncounted":
                other.counts = not other.counts
            elif move.startswith("forget"):
                stream = streams[move.removeprefix("forget ")]
                tables = stream.made.tables
                forget(tables, state=tables.state)
                made = stream.made
                adopt(tables, offsets={(made.topic, p): 0 for p in range(made.partitions)}, source=made.source)
                made.begin()
                stream.read = 0
            else:
                found = one.signal_with(other)
                again = {key: late for key, revision, _, late in found if revision > 1}
                decided = one.assess(other).decision.through_us is not None
                expected = {key: rows for key, rows in since.items() if key in revisions and decided}
                assert again == expected
                for key, revision, *_ in found:
                    assert revision == revisions.get(key, 0) + 1
                    revisions[key] = revision
                if found:
                    since.clear()
