"""A table is renamed, dropped or recreated while its writer runs: the writer's error names what happened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError

from frazil.errors import TableLost
from frazil.events import Event, PhaseBegan
from frazil.host.heartbeat import Phase
from frazil.stream.writer import Writer
from frazil.table.catalogs import load_catalog
from tests.in_process_engine import InProcessEngine

Frazil = Callable[..., Any]


def ended(stream: Any, events: Any, eventually: Frazil, harm: Callable[[Any], None]) -> BaseException | None:
    """Return the error that ends a writer at its first batch after its table was damaged."""
    stream.produce(events(range(10)))
    with stream.writing() as writing:
        eventually(lambda: stream.has_rows(10))
        harm(load_catalog(None))
        stream.produce(events(range(10, 20)))
        outcome: BaseException | None = writing.outcome()
        return outcome


def test_a_renamed_table_is_reported_and_the_stream_continues_once_it_is_renamed_back(
    stream: Any, events: Any, eventually: Frazil, frazil: Frazil
) -> None:
    error = ended(stream, events, eventually, lambda catalog: catalog.rename_table("test.events", "test.others"))
    assert isinstance(error, TableLost)
    assert "holds the table test.others. If test.events was renamed, rename test.others back to test.events" in str(
        error
    )
    for done in (frazil("status", "events"), frazil("audit", "events"), stream.run("--until-caught-up")):
        assert "holds the table test.others" in done.stdout + done.stderr
        assert "frazil register" not in done.stdout + done.stderr
    load_catalog(None).rename_table("test.others", "test.events")
    stream.catch_up()
    assert stream.ids() == list(range(20))


@pytest.mark.parametrize("phase", [Phase.STAGING, Phase.JOURNALING, Phase.COMMITTING])
def test_a_table_renamed_during_a_batch_is_reported_and_the_batch_lands_once(
    stream: Any, events: Any, phase: Phase
) -> None:
    def rename(event: Event) -> None:
        if isinstance(event.payload, PhaseBegan) and event.payload.phase is phase:
            with suppress(NoSuchTableError):
                load_catalog(None).rename_table("test.events", "test.others")

    stream.produce(events(range(10)))
    stream.catch_up()
    stream.produce(events(range(10, 20)))
    with pytest.raises(TableLost, match=r"holds the table test\.others"):
        Writer(stream.spec, InProcessEngine(), until_caught_up=True, sinks=(rename,)).run()
    load_catalog(None).rename_table("test.others", "test.events")
    stream.catch_up()
    assert stream.ids() == list(range(20))


@pytest.mark.rotates(2)
@pytest.mark.parametrize("folder", ["elsewhere", None])
def test_a_recreated_table_stops_the_stream_until_the_stream_is_forgotten(
    stream: Any, events: Any, eventually: Frazil, frazil: Frazil, folder: str | None
) -> None:
    def create_again(catalog: Any) -> None:
        schema = catalog.load_table("test.events").schema()
        catalog.drop_table("test.events")
        catalog.create_table("test.events", schema, location=folder and f"file://{stream.streams}/{folder}")

    error = ended(stream, events, eventually, create_again)
    assert isinstance(error, TableLost)
    for done in (frazil("status", "events"), frazil("audit", "events"), stream.run("--until-caught-up")):
        assert "test.events is not the table that the stream wrote" in done.stdout + done.stderr
    assert stream.ids() == []
    forgotten = frazil("forget", "events", "--yes")
    assert forgotten.returncode == 0, forgotten.stderr
    stream.catch_up()
    assert stream.ids() == list(range(20))
    for options in ((), ("--source",)):
        audited = frazil("audit", "events", *options)
        assert (audited.returncode, audited.stdout.count("OFF")) == (0, 0), audited.stdout


def test_a_dropped_and_purged_table_is_not_created_again_by_the_next_start(
    stream: Any, events: Any, frazil: Frazil
) -> None:
    stream.produce(events(range(10)))
    stream.catch_up()
    location = load_catalog(None).load_table("test.events").location()
    load_catalog(None).drop_table("test.events")
    shutil.rmtree(location.removeprefix("file://"))
    stopped = stream.run("--until-caught-up")
    assert stopped.returncode == TableLost.exit_code
    assert "test.events_dead_letters still has the stream's epoch" in stopped.stdout + stopped.stderr
    assert not load_catalog(None).table_exists("test.events")
    frazil("forget", "events", "--yes")
    stream.catch_up()
    assert stream.ids() == list(range(10))


def test_no_stream_begins_in_a_folder_that_a_renamed_table_still_uses(
    stream: Any, events: Any, eventually: Frazil
) -> None:
    def rename_and_create_again(catalog: Any) -> None:
        schema = catalog.load_table("test.events").schema()
        catalog.rename_table("test.events", "test.others")
        catalog.create_table("test.events", schema)

    error = ended(stream, events, eventually, rename_and_create_again)
    assert isinstance(error, TableLost)
    with pytest.raises(TableLost, match=r"without PURGE\), then rename test\.others back to test\.events"):
        stream.catch_up()
    assert stream.ids() == []
    load_catalog(None).drop_table("test.events")
    load_catalog(None).rename_table("test.others", "test.events")
    stream.catch_up()
    assert stream.ids() == list(range(20))
