"""Upserts, routes and commits of several tables as a state machine: whatever fails or dies between any two steps.

Each row is in its table once, a table of upserts has the newest version of each key, no routed table is ahead of home,
and where all change at once no one ever sees a part. As in `test_protocol_model`, Hypothesis chooses who does what, and
which operation of a process fails before or after its effect, lands late, or is its last.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

from frazil.commit import compare_and_swap, followers, merging
from frazil.commit import sweep as sweeping
from frazil.commit.compare_and_swap import RetryPolicy
from frazil.commit.marker import BatchKey, BatchOutcome, Marker
from frazil.commit.marker_changes import discard_rows_of_existing_table, reset
from frazil.commit.reset_plan import read_state_before_reset
from frazil.commit.routed_table_records import write_table_record
from frazil.errors import CommitUnavailable, Fenced, RolledBack, RouteBehind, StaleBatch
from frazil.stream import routed_tables
from frazil.table.declared_tables import declare_routed_table
from frazil.table.tables import ensure_declared
from tests.unit.commit.conftest import catalog_in

from .protocol_faults import Clock, InjectedError, KilledError
from .protocol_process import Process
from .protocol_tables import BAD, DEAD, FOREIGN, HOME, KINDS, ROUTED, SOURCE, TP, Kind, Record, World

SOAKS = os.environ.get("FRAZIL_TEST_EXAMPLES") == "soak"
EXAMPLES = int(os.environ.get("FRAZIL_TABLES_MODEL_EXAMPLES", "400" if SOAKS else "10"))
SEED = int(os.environ["FRAZIL_TEST_SEED"])
STEPS = 30
MAX_PROCESSES = 3
FAULTS = {
    "commit": ["fail-before", "fail-after", "late", "others", "overtaken", "kill-before", "kill-after"],
    "load": ["fail-before", "kill-before", "stale-1", "stale-2"],
    "put": ["fail-before", "fail-after", "kill-before", "kill-after", "torn"],
    "delete": ["fail-before", "kill-before", "kill-after"],
    "write": ["fail-before", "kill-before", "torn"],
    "merge": ["fail-before", "fail-after", "others", "kill-before", "kill-after"],
}
OTHERS = ["append", "compact", "expire", "a late commit lands", "another writer"]


def _after_some(well: int, faults: list[str]) -> list[str]:
    return ["ok"] * well + faults


plans = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            operation: st.builds(
                _after_some, st.integers(0, 3), st.lists(st.sampled_from(kinds), min_size=1, max_size=2)
            )
            for operation, kinds in FAULTS.items()
        },
    ),
)
records = st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 3)), min_size=1, max_size=6)
"""Made into changes of a few keys, or into rows of each table; some are bad."""
processes = st.integers(0, MAX_PROCESSES - 1)
anything = st.sampled_from(OTHERS)
routed = st.sampled_from(ROUTED)


class Tables(RuleBasedStateMachine):
    """Writers of one stream that stage, journal, commit, follow and die; and all that others do to its tables."""

    steps = 0
    """Steps of all examples together."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = tempfile.mkdtemp(prefix="frazil-tables-", dir=memory if memory.is_dir() else None)
        self.opened = contextlib.ExitStack()
        self.opened.callback(shutil.rmtree, self.folder)
        self.writers: list[Process] = []
        self.moves_seen = 0
        self.resetting = False
        self.trouble: dict[str, int | None] = {}
        """Routed tables that were rolled back, with the snapshot that they had; None for those that were dropped."""
        self.given_up: dict[str, set[int]] = {name: set() for name in ROUTED}
        """Rows that a person let go."""
        self.dropped = False
        """Whether a routed table ever was."""

    @initialize(kind=st.sampled_from(KINDS))
    def begin_with(self, kind: Kind) -> None:
        catalog = self.opened.enter_context(catalog_in(Path(self.folder))).inner
        self.world = World(kind, catalog)
        self.world.after_commit = self._check_readers
        patch = self.opened.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(merging, "open_store", self.world.store)
        patch.setattr(compare_and_swap, "open_store", self.world.store)

    def teardown(self) -> None:
        with self.opened:
            if hasattr(self, "world") and sys.exc_info()[0] is None:
                self._end()

    # Kafka

    @rule(made=records)
    def produce(self, made: list[tuple[int, int]]) -> None:
        self.world.log += [self._record(*each) for each in made]

    def _record(self, key: int, amount: int) -> Record:
        if (key, amount) == (5, 3):
            return BAD
        if self.world.merges:
            return key, None if amount < 0 else amount
        return (HOME, *ROUTED, *ROUTED, BAD)[key]

    # Writers

    @precondition(lambda self: len(self.writers) < MAX_PROCESSES)
    @rule(plan=plans, meanwhile=anything)
    def start(self, plan: dict[str, list[str]], meanwhile: str) -> None:
        """Take over and settle; the previous writer continues, paused or not."""
        writer = Process(self.world, lambda: self._happens(meanwhile, HOME))
        self.writers.append(writer)
        self._step(writer, plan, writer.begin)

    @rule(who=processes, limit=st.integers(1, 8), leftover=st.booleans(), plan=plans)
    def go_on(self, who: int, limit: int, leftover: bool, plan: dict[str, list[str]]) -> None:
        """One writer's next step: stage, journal, commit, or let the routed tables follow."""
        able = [writer for writer in self.writers if writer.began]
        if not able:
            return
        writer = able[who % len(able)]
        if writer.staged is None:
            self._step(writer, plan, lambda: writer.stage(limit, leftover=leftover))
        elif not writer.journaled:
            if self._step(writer, plan, writer.journal) is False:
                self._fenced(writer)
        else:
            self._step(writer, plan, writer.follow if writer.decided else writer.commit)

    @rule(made=records, times=st.integers(1, 2))
    def run_batches(self, made: list[tuple[int, int]], times: int) -> None:
        """Run batches without faults, so that long histories occur too."""
        for _ in range(times):
            self.produce(made)
            if not any(writer.began and writer.staged is None for writer in self.writers):
                self.writers = self.writers[-MAX_PROCESSES + 1 :]
                writer = Process(self.world)
                self.writers.append(writer)
                self._step(writer, {}, writer.begin)
            for writer in [w for w in self.writers if w.began and w.staged is None][-1:]:
                self._run_a_batch(writer)

    def _run_a_batch(self, writer: Process) -> None:
        if not self._step(writer, {}, lambda: writer.stage(100, leftover=False)):
            return
        journaled = self._step(writer, {}, writer.journal)
        if journaled is False:
            self._fenced(writer)
        elif journaled and self._step(writer, {}, writer.commit):
            self._step(writer, {}, writer.follow)

    @rule(who=processes, plan=plans)
    def begin_again(self, who: int, plan: dict[str, list[str]]) -> None:
        """A writer whose batch was stale begins a new epoch, unless it was replaced."""
        stale = [writer for writer in self.writers if writer.epoch is not None and not writer.began]
        if stale:
            writer = stale[who % len(stale)]
            self._step(writer, plan, writer.begin)

    @rule(who=processes)
    def kill(self, who: int) -> None:
        if self.writers:
            self.writers.pop(who % len(self.writers))

    # The others

    @rule(what=anything, name=st.sampled_from([HOME, DEAD, *ROUTED]))
    def others(self, what: str, name: str) -> None:
        self._happens(what, name)

    def _happens(self, what: str, name: str) -> None:
        """Act next to any running step, even in the middle of a commit or merge."""
        name = name if name in self.world.names and name not in self.trouble else HOME
        operations: dict[str, Callable[[], None]] = {
            "append": self.world.append,
            "compact": lambda: self.world.compact(name),
            "expire": lambda: self.world.expire(name),
            "a late commit lands": self.world.land_late,
            "another writer": self._another_writer,
        }
        operations[what]()

    def _another_writer(self) -> None:
        """Takes over, and commits what there is."""
        writer = Process(self.world)
        if self._step(writer, {}, writer.begin):
            self._run_a_batch(writer)

    @rule(back=st.booleans())
    def reset(self, back: bool) -> None:
        """`frazil reset`: to the stream's position, or, after a rollback of an upserted table, to the table's."""
        if self.world.marker() is None:
            return
        if back and self.world.merges and not self.world.routed and self.world.roll_back(HOME) is not None:
            self.world.foreign &= {row["id"] for row in self.world.rows(HOME)}
        head = self.world.load(HOME).current_snapshot()
        assert head is not None
        process, self.resetting = Process(self.world), True
        target = {TP: self.world.positions[head.snapshot_id]}
        reset(process.tables, target=target, source=SOURCE, seen=read_state_before_reset(process.tables))
        self._check_markers()
        self.resetting = False

    @precondition(lambda self: not self.world.merges)
    @rule(name=routed, drops=st.booleans())
    def trouble_a_routed_table(self, name: str, drops: bool) -> None:
        """A user rolls it back, or drops it."""
        if name in self.trouble or not self.world.there(name):
            return
        if drops:
            self.given_up[name] |= set(self.world.offsets(name))
            self.trouble[name], self.dropped = None, True
            self.world.catalog.purge_table(name)
        elif (head := self.world.roll_back(name)) is not None:
            self.trouble[name] = head

    @precondition(lambda self: bool(self.trouble))
    @rule(forward=st.booleans())
    def fix_a_routed_table(self, forward: bool) -> None:
        """An operator restores the table or accepts its state with `frazil route`, and recreates it if necessary."""
        name = min(self.trouble)
        head = self.trouble.pop(name)
        home = self.world.marker()
        if home is None or (head is not None and forward and self.world.move(name, head)):
            return
        process = Process(self.world)
        table = ensure_declared(process.catalog, declare_routed_table(self.world.spec, name), self.world.spec.name)
        discard_rows_of_existing_table(process.tables, name, home)
        if head is None:
            write_table_record(process.tables, name, None, table)
        self.given_up[name] |= self.world.records_of(name) - set(self.world.offsets(name))

    # What must hold

    @invariant()
    def all_holds(self) -> None:
        if hasattr(self, "world"):
            Tables.steps += 1
            self._check_readers()
            self._check_markers()
            self._check_files()

    def _check_readers(self) -> None:
        """Check what any reader may see at any time."""
        dead = self.world.offsets(DEAD)
        assert all(count == 1 for count in dead.values()), dead
        assert all(self.world.log[offset] == BAD for offset in dead)
        assert self.world.records_of(BAD) <= dead.keys()
        if self.world.merges:
            self._check_keys()
        else:
            self._check_rows()

    def _check_keys(self) -> None:
        for name in (HOME, *(name for name in self.world.routed if self.world.there(name))):
            rows, marker = self.world.rows(name), self.world.marker(name)
            found = {row["id"]: row["amount"] for row in rows}
            assert len(found) == len(rows), f"a key of {name} has two rows: {rows}"
            ours = {key: amount for key, amount in found.items() if key < FOREIGN}
            assert ours == self.world.newest(name, marker.offsets[TP] if marker else 0), name
            if self.world.spec.commit.atomic:
                assert ours == self.world.newest(name, self.world.offset()), "a reader sees a part of a batch"
        foreign = {row["id"] for row in self.world.rows(HOME) if row["id"] >= FOREIGN}
        assert foreign == self.world.foreign, "somebody's rows are gone"

    def _check_rows(self) -> None:
        assert self.world.offsets(HOME) == dict.fromkeys(self.world.records_of(HOME), 1)
        for name in ROUTED:
            if not self.world.there(name):
                continue
            rows, records = self.world.offsets(name), self.world.records_of(name)
            assert all(count == 1 for count in rows.values()), (name, rows)
            assert rows.keys() <= records, "a routed table is ahead of home"
            if self.world.spec.commit.atomic and name not in self.trouble:
                assert records <= rows.keys() | self.given_up[name], "a reader sees a part of a batch"

    def _check_markers(self) -> None:
        for move in self.world.moves[self.moves_seen :]:
            if move.before is not None and move.after is not None:
                self._check_move(move.table, move.before, move.after)
            assert move.after is not None, f"a marker is gone: {move}"
        self.moves_seen = len(self.world.moves)

    def _check_move(self, name: str, before: Marker, after: Marker) -> None:
        if name not in ROUTED:  # whose last batch may be an earlier epoch's that was settled later
            assert after.sequence_number > before.sequence_number, (name, before, after)
            new_epoch = after.key.epoch > before.key.epoch and after.key.batch == 0
            assert new_epoch or after.key == (before.key.epoch, before.key.batch + 1), (name, before.key, after.key)
        if not self.resetting:
            assert after.offsets.get(TP, 0) >= before.offsets.get(TP, 0), (name, before, after)
            assert (after.settled or BatchKey(0, 0)) >= (before.settled or BatchKey(0, 0)), (name, before, after)
            assert (after.routed or BatchKey(0, 0)) >= (before.routed or BatchKey(0, 0)), (name, before, after)

    def _check_files(self) -> None:
        """Each table has all files that it names, and each journal that may still be committed has its own."""
        for name in self.world.names:
            missing = {path for path in self.world.references(name) if not Path(path).exists()}
            assert not missing, (name, missing)
        home = self.world.marker()
        if home is None:
            return
        for journal in self.world.journals():
            for target in journal.routed:
                if self._waits(journal.key, target, home):
                    missing_too = [f.path for f in journal.staged_for(target) if not _exists(f.path)]
                    assert not missing_too, f"{target} waits for files that are gone: {missing_too}"

    def _waits(self, key: BatchKey, target: str, home: Marker) -> bool:
        """Whether the default table has a batch that a table does not have."""
        if (
            target in self.trouble
            or home.settled is None
            or key > home.settled
            or home.outcome_of(key) is not BatchOutcome.COMMITTED
        ):
            return False
        marker = self.world.marker(target) if self.world.there(target) else None
        return marker is not None and (marker.settled or BatchKey(0, 0)) < key

    # The end

    def _end(self) -> None:
        """Run one epoch without faults: all records are in their tables, and no file is orphaned."""
        self.world.land_late()
        while self.trouble:
            self.fix_a_routed_table(forward=False)
        writer = Process(self.world)
        writer.begin()
        while writer.stage(10_000, leftover=True):
            assert writer.journal()
            writer.commit()
            writer.follow()
            assert not (writer.route and writer.route.followers.behind), "a table is behind although all is well"
        self.world.land_late()
        self.all_holds()
        assert self.world.offset() == len(self.world.log)
        for name in self.world.routed:
            if self.world.merges:
                newest = self.world.newest(name, self.world.offset())
                assert {row["id"]: row["amount"] for row in self.world.rows(name)} == newest
                continue
            assert self.world.records_of(name) == self.world.offsets(name).keys() | (
                self.given_up[name] & self.world.records_of(name)
            )
        if not self.dropped:  # else its files are left to remove_orphan_files, and so are those of rows given up
            for name in (name for name in self.world.names if not self.given_up.get(name)):
                waste = self.world.staged_files(name) - self.world.references(name)
                assert not waste, (name, waste)

    # How a step of a process may end

    def _step(self, writer: Process, plan: dict[str, list[str]], step: Callable[[], Any]) -> Any:
        """Return the step's result; None if the step ended the process in an allowed way."""
        writer.faults.planned = {operation: list(kinds) for operation, kinds in plan.items()}
        try:
            answer = step()
        except Fenced:
            self._fenced(writer)
        except StaleBatch:
            writer.stale()
        except (KilledError, InjectedError):
            self._end_of(writer)
        except (RouteBehind, RolledBack, NoSuchTableError):
            assert self.trouble or plan, "a table is behind although nothing is wrong with it"
            self._end_of(writer)
        except CommitUnavailable as error:
            by_fault = isinstance(error.__cause__, InjectedError | CommitFailedException)
            if not (by_fault or self.trouble or (plan and (self.world.routed or not self.world.merges))):
                raise
            self._end_of(writer)
        else:
            writer.faults.planned = {}
            return True if answer is None else answer
        return None

    def _fenced(self, writer: Process) -> None:
        found = [self.world.marker(name) for name in (HOME, DEAD)]
        newest = max((marker.key.epoch for marker in found if marker), default=0)
        assert writer.epoch is None or newest > writer.epoch, "fenced by nobody"
        self._end_of(writer)

    def _end_of(self, writer: Process) -> None:
        if writer in self.writers:
            self.writers.remove(writer)


def _exists(path: str) -> bool:
    return Path(path.removeprefix("file://")).exists()


def _one_by_one(step: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`run_in_parallel` in an order that can be had again."""
    return [step(item) for item in items]


@pytest.mark.rotates(2, turn=0)
@pytest.mark.hypothesis
@pytest.mark.timeout(1800)
def test_merges_routes_and_commits_at_once_keep_their_promises_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    Tables.steps, now = 0, Clock()
    for module in (compare_and_swap, sweeping):
        monkeypatch.setattr(module, "run_in_parallel", _one_by_one)
    monkeypatch.setattr(followers, "MAX_PARALLEL_COMMITS", 1)
    monkeypatch.setattr(routed_tables, "MAX_PARALLEL_COMMITS", 1)
    monkeypatch.setattr(followers, "RetryPolicy", partial(RetryPolicy, clock=now, wait=now.wait))
    run_state_machine_as_test(
        seed(SEED)(Tables),  # type: ignore[arg-type]
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Tables.steps >= 10 * EXAMPLES
