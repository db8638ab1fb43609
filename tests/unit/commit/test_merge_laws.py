"""After any schedule of batches, kills, conflicts and lost answers, the table has the result of all changes."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from frazil.commit import merge_plan
from tests.unit.commit.conftest import catalog_in
from tests.unit.commit.upserts import BY_BUCKET, BY_REGION, WHOLE, upsert_world

COUNTS = ("inserted", "updated", "deleted", "stale", "superseded", "unchanged")

rows = st.none() | st.tuples(st.sampled_from(["eu", "us"]), st.integers(0, 3))
batches = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 7), rows), max_size=8),
        st.sampled_from(["auto", "copy-on-write", "merge-on-read"]),
        st.sampled_from(["", "lost", "late", "appended", "compacted", "killed", "killed in the merge"]),
    ),
    min_size=2,
    max_size=6,
)


class Killed(BaseException):
    """Simulates a kill within the process."""


@given(batches=batches, spec=st.sampled_from([BY_BUCKET, BY_REGION, WHOLE]), parallelism=st.integers(1, 3))
@settings(max_examples=max(6, settings().max_examples // 16), phases=[Phase.explicit, Phase.generate])
def test_an_upserted_table_has_the_rows_that_its_changes_produce(batches, spec, parallelism):
    with tempfile.TemporaryDirectory() as folder, catalog_in(Path(folder)) as catalog, contextlib.ExitStack() as after:
        after.callback(setattr, merge_plan, "MIN_SPLIT_BYTES", merge_plan.MIN_SPLIT_BYTES)
        merge_plan.MIN_SPLIT_BYTES = 0  # every group above its share is split
        world = upsert_world(catalog, Path(folder), spec, parallelism=parallelism)
        model = {}
        committer = world.begin()
        for number, (changes, how, happens) in enumerate(batches):
            world.how = how
            if happens == "lost":
                catalog.next_answer_is_lost("demo.accounts")
            elif happens == "late":
                catalog.next_lands_late("demo.accounts")
            elif happens == "appended":
                new = {1_000 + number: ("eu", number)}
                catalog.next_meets(lambda new=new: world.append_accounts(new), "demo.accounts")
                model |= new
            elif happens == "compacted":
                catalog.next_meets(world.compact, "demo.accounts")
            if happens == "killed":
                world.change(committer, changes)
            elif happens == "killed in the merge":
                _killed_in_the_merge(world, committer, changes)
            else:
                world.upsert(committer, changes)
            catalog.faults.clear()
            if happens.startswith("killed"):
                committer = world.begin()
            model = {key: row for key, row in {**model, **dict(changes)}.items() if row is not None}

            assert world.accounts() == model
        world.begin()  # sweeps
        assert world.parquet_files() <= world.needed_files() | _of_others(world)
        landed = [s.summary for s in world.load().metadata.snapshots if s.summary and s.summary.get("frazil.inserted")]
        reported = sum(int(summary[f"frazil.{name}"]) for summary in landed for name in COUNTS)
        assert reported == sum(len(changes) for changes, _, _ in batches)


def _killed_in_the_merge(world, committer, changes):
    journal, inner = world.change(committer, changes), world.run_tasks

    def dies(context, tasks):
        inner(context, tasks)
        raise Killed

    world.run_tasks = dies
    with contextlib.suppress(Killed):
        committer.commit(journal)
    world.run_tasks = inner


def _of_others(world):
    """Files that PyIceberg itself wrote: they are no batch's."""
    return {path for path in world.parquet_files() if "/events/" not in path}
