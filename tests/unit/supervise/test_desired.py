"""Desired state beside a real table, as the command line writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from frazil.cli.main import frazil
from frazil.errors import SpecError
from frazil.spec.load import find_stream
from frazil.supervise.desired import DESIRED_FILE, create_desired, open_desired, table_fingerprint
from frazil.supervise.observed import Desired, DesiredMode
from frazil.table.evolution import ACCEPTED_SCHEMA
from frazil.table.tables import load_stream_table, state_location

pytestmark = pytest.mark.usefixtures("frazil_home")


def run(*arguments: str, streams: Path) -> str:
    result = CliRunner().invoke(frazil, [*arguments, "--streams", str(streams)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_without_a_table_nothing_is_said_and_without_an_object_it_shall_run(streams: Path) -> None:
    spec = find_stream(streams, "ticks")
    assert open_desired(spec) is None
    assert create_desired(spec).read() == Desired()
    assert open_desired(spec) is not None


def test_pausing_before_the_first_run_makes_the_table_and_stands_beside_the_journals(streams: Path) -> None:
    assert "is paused" in run("pause", "ticks", "--reason", "Kafka upgrade", streams=streams)
    spec = find_stream(streams, "ticks")
    table = load_stream_table(spec)
    assert table is not None
    assert Path(state_location(table, "ticks").removeprefix("file://"), DESIRED_FILE).exists()
    wanted = create_desired(spec).read()
    assert (wanted.mode, wanted.reason, wanted.generation) == (DesiredMode.PAUSED, "Kafka upgrade", 1)
    assert wanted.by
    assert wanted.at_ms > 1_700_000_000_000


def test_every_act_is_a_generation_and_only_a_restart_asks_for_one(streams: Path) -> None:
    desired = create_desired(find_stream(streams, "ticks"))
    seen = []
    for verb in ("pause", "resume", "restart", "resume"):
        run(verb, "ticks", streams=streams)
        now = desired.read()
        seen.append((now.mode.value, now.generation, now.restart_generation))
    assert seen == [("paused", 1, 0), ("running", 2, 0), ("running", 3, 3), ("running", 4, 3)]


def test_an_object_that_somebody_edited_says_so_and_the_next_act_mends_it(streams: Path) -> None:
    spec = find_stream(streams, "ticks")
    desired = create_desired(spec)
    desired.pause(by="ana", reason="")
    desired._store.put(desired._path, b'{"mode": "sleeping"}')
    with pytest.raises(SpecError, match=r"desired\.json.*frazil pause"):
        desired.read()
    assert desired.resume(by="ana", reason="").generation > 1, "later than any generation that there was"
    assert desired.read().mode is DesiredMode.RUNNING


def test_an_unknown_stream_is_an_error_that_names_the_known_ones(streams: Path) -> None:
    with pytest.raises(SpecError, match="ticks"):
        CliRunner().invoke(
            frazil, ["pause", "tick", "--streams", str(streams)], catch_exceptions=False, standalone_mode=False
        )


@pytest.mark.parametrize("verb", ["pause", "resume", "restart"])
def test_each_help_has_an_example(verb: str) -> None:
    result = CliRunner().invoke(frazil, [verb, "--help"])
    assert f"Example: frazil {verb} flights" in result.output


def test_the_tables_fingerprint_moves_with_its_own_marker_and_schema_only(streams: Path) -> None:
    spec = find_stream(streams, "ticks")
    create_desired(spec)

    def now() -> str:
        table = load_stream_table(spec)
        assert table is not None
        return table_fingerprint(table, "ticks")

    table = load_stream_table(spec)
    assert table is not None
    before = now()
    with table.transaction() as transaction:
        transaction.set_properties({"frazil.stream.another": "{}"})
    assert now() == before
    with table.transaction() as transaction:
        transaction.set_properties({"frazil.stream.ticks": "{}"})
    assert now() != before
    before = now()
    with table.update_schema() as update:
        update.add_column("note", table.schema().find_type("ts"))
    assert now() != before
    before = now()
    with table.transaction() as transaction:
        transaction.set_properties({ACCEPTED_SCHEMA: "1"})
    assert now() != before
