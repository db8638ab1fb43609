"""The outcome of maintenance is stored next to the table, for users to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from frazil.maintenance.due import Action
from frazil.maintenance.outcomes import (
    MAX_OUTCOME_AGE_MS,
    MAX_OUTCOMES_PER_KIND,
    MAX_SENTENCE_CHARACTERS,
    Ending,
    Outcome,
    PastOutcome,
    load_and_store_outcomes,
    read_outcomes,
    store_outcomes,
)
from frazil.maintenance.plans import estimate_bytes
from frazil.table.catalogs import load_catalog
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import land
from tests.unit.operations.test_table_view import metadata, snapshot

NOW_MS = 1_700_000_000_000


def outcome(at_ms: int, ending: Ending = Ending.DONE, action: str = "compaction") -> PastOutcome:
    return PastOutcome(at_ms, action, ending, "why", {"files-removed": 3.0})


def test_the_newest_outcomes_of_each_action_and_ending_are_kept_and_skipped_ones_are_not(made: MadeStream) -> None:
    table = made.tables.main.refresh()
    store_outcomes(
        table,
        [outcome(NOW_MS), outcome(NOW_MS - MAX_OUTCOME_AGE_MS - 1), outcome(NOW_MS, Ending.SKIPPED)],
        now_ms=NOW_MS,
    )
    failed = [outcome(NOW_MS + n, Ending.FAILED) for n in range(1, MAX_OUTCOMES_PER_KIND + 5)]
    for one in failed:
        store_outcomes(table, [one], now_ms=one.at_ms)
    assert read_outcomes(table) == (outcome(NOW_MS), *failed[-MAX_OUTCOMES_PER_KIND:])


def test_a_long_sentence_is_shortened(made: MadeStream) -> None:
    land(made, 1)
    found = Outcome("demo.made", Action.EXPIRY, Ending.FAILED, "x" * 9_999)
    load_and_store_outcomes(load_catalog(None), "demo.made", [found], now_ms=NOW_MS)
    orphans = PastOutcome(NOW_MS, "orphans", Ending.REFUSED, "x" * 9_999)
    store_outcomes(made.tables.main.refresh(), [orphans], now_ms=NOW_MS)
    past = sorted(read_outcomes(made.tables.main.refresh()), key=lambda one: one.action)
    assert [(one.action, len(one.sentence)) for one in past] == [
        ("expiry", MAX_SENTENCE_CHARACTERS),
        ("orphans", MAX_SENTENCE_CHARACTERS),
    ]


@pytest.mark.parametrize("damage", [b"torn", b"{}", b'{"format": 99, "table-uuid": "x", "outcomes": []}'])
def test_a_damaged_outcomes_file_is_ignored_and_replaced(made: MadeStream, damage: bytes) -> None:
    table = made.tables.main.refresh()
    file = Path(urlsplit(table.location()).path, "_frazil/_maintenance/past.json")
    file.parent.mkdir(parents=True)
    file.write_bytes(damage)
    assert read_outcomes(table) == ()
    store_outcomes(table, [outcome(NOW_MS)], now_ms=NOW_MS)
    assert read_outcomes(table) == (outcome(NOW_MS),)


@pytest.mark.usefixtures("made")
def test_an_unreachable_table_does_not_fail_the_recording_of_outcomes(caplog: pytest.LogCaptureFixture) -> None:
    load_and_store_outcomes(
        load_catalog(None), "demo.gone", [Outcome("demo.gone", Action.EXPIRY, Ending.DONE, "")], now_ms=1
    )
    assert "could not be stored" in caplog.text


@pytest.mark.parametrize(("files", "about"), [(9, 700), (3, 233), (0, 0)])
def test_the_bytes_of_expired_snapshots_are_those_that_the_next_snapshots_removed(files: int, about: int) -> None:
    reported: dict[str, Any] = {"deleted_data_files": "8", "removed_delete_files": "1", "removed_files_size": "700"}
    kept = snapshot(3, "replace", parent=2, deleted_data_files="50", removed_files_size="99")
    seen = metadata(snapshot(1), snapshot(2, "replace", parent=1, **reported), kept)
    assert estimate_bytes(seen, [1], files=files) == about
    assert estimate_bytes(seen, [], files=files) == 0
