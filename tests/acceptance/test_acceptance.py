"""Whatever is so and whatever happens: every record is in the table or in the dead letters once, and people can tell.

A cell is a situation, a happening, the stream's shape, and whether a writer ran before the situation arose. `make soak`
runs every situation with every happening. `make test` runs seventeen cells, which rotate: the number of the commit
chooses them, so that consecutive commits run the whole table. `FRAZIL_TEST_SEED` chooses the cells of another number.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from frazil.dev.kafka import EmbeddedKafka
from frazil.table.catalogs import catalog_config
from tests.acceptance.airflow_server import AirflowServer
from tests.acceptance.command_server import CommandServer
from tests.acceptance.happenings import HAPPENINGS, StreamEvent
from tests.acceptance.situations import SITUATIONS, Situation, another_stream, nothing, rolled_back
from tests.acceptance.world import SHAPES, Shape, World
from tests.conftest import TEST_SEED
from tests.polling import eventually

IN_TEST = 17
NUMBER = int(os.environ[TEST_SEED])
"""The number of the commit, unless the environment has another."""


@dataclass(frozen=True, slots=True)
class Cell:
    situation: Situation
    happening: StreamEvent
    shape: Shape
    runs_already: bool

    def __str__(self) -> str:
        when = "while it runs" if self.runs_already else "before it starts"
        return f"{self.situation}, {when}, {self.happening}, {self.shape}"

    @property
    def is_allowed(self) -> bool:
        """Whether frazil supports the cell.

        Only one stream may write to a table with a key, or to the tables of its route. A routed stream that appends
        cannot be reset to its table's position.
        """
        alone = self.shape.keeps != "all" or self.shape.routed is not None
        if alone and self.situation.arise is another_stream:
            return False
        return not (self.shape.routed and self.shape.keeps == "all" and self.situation.arise is rolled_back)

    @property
    def pairs(self) -> set[tuple[str, str]]:
        factors = (str(self.situation), str(self.happening), str(self.shape), str(self.runs_already))
        return set(itertools.combinations(factors, 2))


def table_of_cells(seed: int) -> list[Cell]:
    """Each situation with each happening once, with those other factors that leave the most pairs covered.

    The order is that in which the cells cover most pairs.
    """
    chance = random.Random(seed)
    wanted = [(s, h) for s in SITUATIONS for h in HAPPENINGS]
    chance.shuffle(wanted)
    covered: Counter[tuple[str, str]] = Counter()
    used: Counter[str] = Counter()
    cells: list[Cell] = []
    while wanted:
        fewest = min(used[str(s)] + used[str(h)] for s, h in wanted)
        first = next((s, h) for s, h in wanted if used[str(s)] + used[str(h)] == fewest)
        wanted.remove(first)
        others = [Cell(*first, shape, runs) for shape in SHAPES for runs in (False, True)]
        cell = min(filter(lambda c: c.is_allowed, others), key=lambda c: sum(covered[pair] for pair in c.pairs))
        covered.update(cell.pairs)
        used.update((str(cell.situation), str(cell.happening)))
        cells.append(cell)
    return cells


PARTS = len(SITUATIONS) * len(HAPPENINGS) // IN_TEST
CELLS = table_of_cells(NUMBER // PARTS)
FIRST = NUMBER % PARTS * IN_TEST
"""The first cell that `make test` runs."""
GROWING = Situation("records with new fields", nothing)
# A transform computes all columns, and evolution would move fields out of the rest.
GROWING_SHAPES = [shape for shape in SHAPES if not (shape.transformed or shape.has_rest)]
GROWING_IN_TEST = "another host takes over"
"""The happening that `make test` has meet a table that grows; `make soak` has all."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that cells may kill."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka-of-cells")) as broker:
        yield broker


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory, spark_home: Path) -> Iterator[CommandServer]:
    """The command, on hosts that share the catalog of the session's Spark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAZIL_HOME", str(spark_home))
        catalog = catalog_config(None).properties
    (spark_home / "warehouse").mkdir(exist_ok=True)
    environment = {f"PYICEBERG_CATALOG__DEFAULT__{key.upper()}": value for key, value in catalog.items()}
    server = CommandServer(tmp_path_factory.mktemp("acceptance"), environment)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory, commands: CommandServer) -> Iterator[AirflowServer]:
    """Airflow on the same catalog."""
    server = AirflowServer(tmp_path_factory.mktemp("acceptance-airflow"), commands.environment)
    yield server
    server.stop()


Surfaces = tuple[EmbeddedKafka, CommandServer, AirflowServer]


@pytest.fixture(scope="session")
def surfaces(kafka: EmbeddedKafka, commands: CommandServer, airflow: AirflowServer) -> Surfaces:
    return kafka, commands, airflow


@pytest.fixture
def world(
    tmp_path: Path, surfaces: Surfaces, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[World]:
    _, commands, airflow = surfaces
    for key, value in commands.environment.items():
        monkeypatch.setenv(key, value)
    name = f"rides_{os.urandom(4).hex()}"
    made = World(tmp_path, *surfaces, request.param, name, spark=partial(request.getfixturevalue, "spark"))
    try:
        made.begin()
        airflow.begin(streams=made.file.parent, home=tmp_path / "one")
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("cell", "world"),
    [
        pytest.param(cell, cell.shape, id=str(cell), marks=[] if FIRST <= n < FIRST + IN_TEST else [pytest.mark.soak])
        for n, cell in enumerate(CELLS)
    ],
    indirect=["world"],
)
def test_every_record_lands_once_and_operators_can_see_it(cell: Cell, world: Any):
    situation = cell.situation
    situation.before(world)
    if cell.runs_already:
        world.quiet(world.run())
    if situation.fix:
        world.pending_fix = partial(situation.fix, world)
    situation.arise(world)
    cell.happening.to(world, situation)
    world.stop()
    if situation.red is not None:
        world.catch_up(code=situation.red)
        world.check_red(situation.word, audited=situation.audited)
    world.fix()
    world.produce(2 * world.shape.partitions)
    if cell.runs_already:
        world.quiet(world.run())
    else:
        world.catch_up()
        world.pause()
    world.check()
    world.check_green()
    world.stop()


@pytest.mark.parametrize(
    ("happening", "world"),
    [
        pytest.param(
            happening,
            GROWING_SHAPES[n % len(GROWING_SHAPES)],
            id=str(happening),
            marks=[] if happening.name == GROWING_IN_TEST else [pytest.mark.soak],
        )
        for n, happening in enumerate(HAPPENINGS)
    ],
    indirect=["world"],
)
def test_a_table_grows_with_its_records_whatever_happens(happening: StreamEvent, world: Any):
    world.more = f"evolution: {'additive' if world.shape.keeps == 'first' else 'full'}\n"
    world.declare()
    world.produce(24, odd=[b"never a ride"])
    world.quiet(world.run())
    world.signal()
    world.grows = 2
    world.produce(12)
    happening.to(world, GROWING)
    world.stop()
    world.grows = 3
    world.produce(2 * world.shape.partitions)
    world.catch_up()
    world.pause()
    world.check()
    # The first, `ignored`, two fields in one batch or in two, the third, and the column that is declared meanwhile.
    world.check_grown(within=6)
    world.check_green()


@pytest.mark.parametrize("world", [s for s in SHAPES if s.name == "whole windows"], indirect=True)
def test_a_batch_of_mostly_rejected_records_waits_until_a_user_accepts_them(world: Any):
    world.more = "dead-letters: {circuit: {share: 50%, at-least: 30}}\n"
    world.declare()
    world.produce(8, odd=[b"never a ride"])
    world.catch_up()
    landed, odd = world.landed(), [b"nonsense %d" % n for n in range(60)]
    world.produce(2, odd=odd)
    for _ in range(2):
        done = world.catch_up(code=27)
        assert "60 of 62 records (96.8 %) would be dead letters, more than 50 %" in done.err
        assert (world.landed(), world.rejected().total()) == (landed, 1)
    world.check_red("CircuitOpen", audited=None)

    accepted = world.frazil("resume", world.name, "--accept", "--reason", "the sensors were repaired")
    assert accepted.code == 0, accepted.err
    world.produce(2, odd=odd[:20])  # too few for the circuit, and behind those that were accepted
    world.catch_up()
    world.check()
    world.produce(2, odd=odd)
    world.catch_up(code=27)
    assert world.frazil("reset", world.name, "--to", "latest", "--yes").code == 0
    world.lost |= {(0, r.partition, r.offset) for r in world.witness()} - landed_or_rejected(world)
    world.produce(4)
    world.catch_up()
    world.check()


def landed_or_rejected(world: Any) -> set[tuple[int, int, int]]:
    return {(0, *at) for at, _ in (*world.landed(), *world.rejected())}


def test_no_process_outlives_its_test_even_if_it_hangs(commands: CommandServer, tmp_path: Any):
    left = commands.start("dev", "down", environment={"FRAZIL_HOME": str(tmp_path)})
    left.signal(signal.SIGSTOP)
    commands.end_all()
    eventually(lambda: not left.runs)
    assert not psutil.pid_exists(left.pid)
