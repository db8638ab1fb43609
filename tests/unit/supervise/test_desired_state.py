"""Desired state stored next to a real table, as the command line writes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from frazil.cli.main import frazil
from frazil.errors import DesiredMoved, SpecError
from frazil.home import home, run_folder
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.supervise.decision import DesiredMode, DesiredState
from frazil.supervise.desired_state import (
    CHAIN_FOLDER,
    DESIRED_FILE,
    DesiredStore,
    _DesiredStateFolder,
    open_desired_store,
    table_fingerprint,
)
from frazil.table.catalogs import load_catalog
from frazil.table.evolution import ACCEPTED_SCHEMA
from frazil.table.tables import ensure_table, load_stream_table, state_location

pytestmark = pytest.mark.usefixtures("frazil_home")


def run(*arguments: str, streams: Path) -> str:
    result = CliRunner().invoke(frazil, [*arguments, "--streams", str(streams)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def is_with_table(spec: StreamSpec) -> DesiredStore:
    ensure_table(load_catalog(None), spec)
    return open_desired_store(spec)


def test_without_a_stored_desired_state_a_stream_is_desired_to_run(streams: Path) -> None:
    spec = find_stream(streams, "ticks")
    assert open_desired_store(spec).read() == DesiredState()
    assert is_with_table(spec).read() == DesiredState()


@pytest.mark.parametrize("verb", ["pause", "resume", "restart"])
def test_a_desired_state_before_the_first_start_creates_no_catalog_and_applies_to_this_host(
    verb: str, streams: Path
) -> None:
    said = run(verb, "ticks", "--reason", "the topic comes at noon", streams=streams)
    assert "This applies to this host only, because the catalog has no table demo.ticks yet." in said
    files = [path for path in home().rglob("*") if path.is_file()]
    own = [path for path in files if home() / "declared" not in path.parents]
    assert {path.relative_to(run_folder("ticks")).parts[0] for path in own} == {DESIRED_FILE, CHAIN_FOLDER}
    wanted = open_desired_store(find_stream(streams, "ticks")).read()
    assert (wanted.mode is DesiredMode.PAUSED) == (verb == "pause")
    assert wanted.reason == "the topic comes at noon"


def test_a_desired_state_set_before_the_first_start_holds_until_a_user_changes_it(streams: Path) -> None:
    run("pause", "ticks", streams=streams)
    spec = find_stream(streams, "ticks")
    before = open_desired_store(spec).read()
    desired = is_with_table(spec)
    assert desired.read() == before
    assert "this host alone" not in run("resume", "ticks", streams=streams)
    after = desired.read()
    assert (after.mode, after.generation > before.generation) == (DesiredMode.RUNNING, True)
    assert not (run_folder("ticks") / DESIRED_FILE).exists()


def test_the_last_action_counts_on_whichever_host_it_was(streams: Path) -> None:
    """Another host does not see this one's run folder, and counts on from the table's object."""
    run("pause", "ticks", streams=streams)
    spec = find_stream(streams, "ticks")
    desired = is_with_table(spec)
    elsewhere = DesiredStore("ticks", load_stream_table(spec))
    elsewhere._folders.pop()
    seen = [desired.read()]
    for operation in (elsewhere.resume, elsewhere.pause, elsewhere.restart):
        operation(by="ben", reason="")
        seen.append(desired.read())
    assert [one.mode.value for one in seen] == ["paused", "running", "paused", "running"]
    generations = [one.generation for one in seen]
    assert generations == sorted(set(generations))
    assert seen[-1].restart_generation == seen[-1].generation


def test_a_pause_without_the_catalog_reports_it_and_gets_a_later_generation(streams: Path) -> None:
    spec = find_stream(streams, "ticks")
    desired = is_with_table(spec)
    for _ in range(3):
        desired.restart(by="ana", reason="")
    for path in home().glob("catalog.db*"):
        path.unlink()
    assert "demo.ticks is not in the catalog 'default'" in run("pause", "ticks", streams=streams)
    assert not list(home().glob("catalog.db*"))
    found = open_desired_store(spec).read()
    assert (found.mode, found.generation > 3) == (DesiredMode.PAUSED, True)
    assert desired.read() == found, "who opened it beside the table sees it too"


def test_a_desired_state_is_stored_next_to_the_journals(streams: Path) -> None:
    spec = find_stream(streams, "ticks")
    is_with_table(spec)
    assert "is paused" in run("pause", "ticks", "--reason", "Kafka upgrade", streams=streams)
    table = load_stream_table(spec)
    assert table is not None
    assert Path(state_location(table, "ticks").removeprefix("file://"), DESIRED_FILE).exists()
    wanted = open_desired_store(spec).read()
    assert (wanted.mode, wanted.reason, wanted.generation) == (DesiredMode.PAUSED, "Kafka upgrade", 1)
    assert wanted.by
    assert wanted.at_ms > 1_700_000_000_000


def test_every_action_is_a_generation_and_only_a_restart_asks_for_one(streams: Path) -> None:
    desired = is_with_table(find_stream(streams, "ticks"))
    seen = []
    for verb in ("pause", "resume", "restart", "resume"):
        run(verb, "ticks", streams=streams)
        now = desired.read()
        seen.append((now.mode.value, now.generation, now.restart_generation))
    assert seen == [("paused", 1, 0), ("running", 2, 0), ("running", 3, 3), ("running", 4, 3)]


def test_a_manually_edited_desired_state_is_reported_and_the_next_command_fixes_it(streams: Path) -> None:
    spec = find_stream(streams, "ticks")
    desired = is_with_table(spec)
    desired.pause(by="ana", reason="")
    place = desired._folders[0]
    place._store.put(place._path, b'{"mode": "sleeping"}')
    with pytest.raises(SpecError, match=r"desired\.json.*frazil pause"):
        desired.read()
    assert desired.resume(by="ana", reason="").generation > 1, "later than any generation that there was"
    assert desired.read().mode is DesiredMode.RUNNING


def test_one_of_two_concurrent_user_actions_is_refused_and_the_other_takes_effect(
    streams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen the same state. The second writes between the first one's look and its write."""
    desired = is_with_table(find_stream(streams, "ticks"))
    other = open_desired_store(find_stream(streams, "ticks"))
    for table in (True, False):
        for one in (desired, other):
            one._folders = one._folders if table else one._folders[1:]
        put, seen = _DesiredStateFolder.put, desired.read()

        def after_another(
            place: _DesiredStateFolder, wanted: DesiredState, *, previous: DesiredState | None, put: Any = put
        ) -> bool:
            monkeypatch.setattr(_DesiredStateFolder, "put", put)
            other.pause(by="ana", reason="", after=seen.generation)  # noqa: B023 - called before the next round
            return put(place, wanted, previous=previous)

        monkeypatch.setattr(_DesiredStateFolder, "put", after_another)
        with pytest.raises(DesiredMoved, match="ticks was paused, resumed or restarted by another user"):
            desired.restart(by="ben", reason="", after=seen.generation)
        found = desired.read()
        assert (found.mode, found.by) == (DesiredMode.PAUSED, "ana")
        with pytest.raises(DesiredMoved):
            desired.restart(by="ben", reason="", after=seen.generation)
        assert desired.read() == found
        assert desired.restart(by="ben", reason="", after=found.generation) == desired.read()


def test_a_desired_state_counts_once_a_later_one_follows_even_if_its_writer_dies(
    streams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desired = is_with_table(find_stream(streams, "ticks"))
    desired.pause(by="ana", reason="")
    place = desired._folders[0]
    late = place._store.get(place._path)
    assert late is not None
    monkeypatch.setattr(place._store, "put", lambda *_: None)  # it dies before it replaces the object
    desired.resume(by="ben", reason="")
    monkeypatch.undo()
    assert desired.read().by == "ben"
    desired.pause(by="cleo", reason="")
    place._store.put(place._path, late)  # one that stood still replaces it with its own
    assert desired.read().by == "cleo"
    assert desired.restart(by="ana", reason="").generation == 4


@pytest.mark.parametrize("table", [True, False])
def test_exactly_one_of_many_concurrent_actions_on_one_state_succeeds(streams: Path, table: bool) -> None:
    spec = find_stream(streams, "ticks")
    desired = is_with_table(spec) if table else open_desired_store(spec)
    for _ in range(5):
        seen = desired.read().generation

        def operation(number: int, seen: int = seen) -> bool:
            with suppress(DesiredMoved):
                desired.restart(by=f"{number}", reason="", after=seen)
                return True
            return False

        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(operation, range(8)))
        assert sum(done) == 1
        assert desired.read().by == f"{done.index(True)}"


def test_an_unknown_stream_is_an_error_that_names_the_known_ones(streams: Path) -> None:
    with pytest.raises(SpecError, match="ticks"):
        CliRunner().invoke(
            frazil, ["pause", "tick", "--streams", str(streams)], catch_exceptions=False, standalone_mode=False
        )


@pytest.mark.parametrize("verb", ["pause", "resume", "restart"])
def test_each_help_has_an_example(verb: str) -> None:
    result = CliRunner().invoke(frazil, [verb, "--help"])
    assert f"Example:\n    frazil {verb} flights" in result.output


def test_the_tables_fingerprint_moves_with_its_own_marker_and_schema_only(streams: Path) -> None:
    spec = find_stream(streams, "ticks")
    is_with_table(spec)

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
