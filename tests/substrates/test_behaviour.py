"""What a stream is promised holds in each catalog and storage that users have, with real servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from frazil.commit.catalog_probe import probe
from frazil.commit.settle import settle
from frazil.commit.stream_tables import StreamTables
from frazil.errors import Fenced, RolledBack, StaleBatch
from frazil.ingest.contract import RangeProgress
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from tests.made_batches import MadeStream
from tests.substrates.conftest import NOW_MS

Made = Callable[[], MadeStream]


def rows(tables: StreamTables, *, dead_letters: bool = False) -> list[tuple[int, int]]:
    """Partition and offset of each row: duplicates show."""
    handle = tables.dead_letters if dead_letters else tables.main
    found = handle.refresh().scan(selected_fields=("kafka_partition", "kafka_offset")).to_arrow()
    return sorted(zip(*(found[name].to_pylist() for name in ("kafka_partition", "kafka_offset")), strict=True))


def offsets(partition: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(start, end)]


def staged(stream: MadeStream, start: int, end: int) -> Any:
    """A batch of partition 0 that is journaled, and not committed."""
    return stream.stage(
        [RangeProgress(stream.topic, 0, start, end, end - start, 0, None)], {0: np.arange(start, end)}, {}
    )


def files(tables: StreamTables, table: Table, folder: str) -> set[str]:
    """Names of the files in a folder of the table, as its storage lists them."""
    return {f.path.rsplit("/", 1)[-1] for f in tables.store.list_files(f"{table.location().rstrip('/')}/{folder}")}


def test_the_catalog_passes_the_probe_which_leaves_nothing(stream_spec: StreamSpec) -> None:
    catalog = load_catalog("lake")
    assert probe(catalog, stream_spec, now_ms=NOW_MS) == ()
    assert not catalog.namespace_exists("substrates") or not [
        name for _, name in catalog.list_tables("substrates") if name.startswith("frazil_probe")
    ]


def test_batches_land_once_each_with_their_dead_letters(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 100), 1: (0, 50)})
    marker = stream.land({0: (100, 200)}, rejected={0: [100, 150]})
    good = [row for row in offsets(0, 0, 200) if row[1] not in (100, 150)] + offsets(1, 0, 50)
    assert rows(stream.tables) == sorted(good)
    assert rows(stream.tables, dead_letters=True) == [(0, 100), (0, 150)]
    assert marker.offsets == {(stream.topic, 0): 200, (stream.topic, 1): 50}


def test_a_take_over_fences_the_writer_before_it(made: Made) -> None:
    first, second = made(), made()
    first.land({0: (0, 10)})
    waiting = staged(first, 10, 20)
    second.begin()
    settle(second.tables, second.committer)  # type: ignore[arg-type]
    with pytest.raises((Fenced, StaleBatch)):
        first.committer.commit(waiting)  # type: ignore[union-attr]
    second.land({0: (20, 30)})
    assert rows(second.tables) == offsets(0, 0, 30)


def test_a_journaled_batch_of_a_dead_writer_is_committed_by_the_next_without_being_staged_again(made: Made) -> None:
    dead, following = made(), made()
    dead.land({0: (0, 10)})
    journal = staged(dead, 10, 20)
    settled = settle(following.tables, following.begin())
    assert settled.committed == (journal.key,)
    assert rows(following.tables) == offsets(0, 0, 20)


def test_files_that_nobody_will_commit_are_found_by_listing_and_deleted(made: Made) -> None:
    dead, following = made(), made()
    dead.land({0: (0, 10)})
    table = dead.tables.main.refresh()
    before = files(dead.tables, table, "data")
    marker = dead.tables.marker()
    assert marker is not None
    dead.write(table, type(marker.at)(marker.at.epoch, marker.at.batch + 1), "main", {0: np.arange(10, 20)})
    assert files(dead.tables, table, "data") > before
    assert settle(following.tables, following.begin()).deleted_files == 1
    assert files(dead.tables, table, "data") == before


def test_a_commit_whose_answer_is_lost_lands_once_and_every_manifest_of_the_table_stays(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    catalog = stream.tables.main.refresh().catalog
    commit, lost = catalog.commit_table, 0

    def unanswered(*change: Any) -> Any:
        nonlocal lost
        answer = commit(*change)
        lost += 1
        if lost == 1:
            raise ConnectionError("the answer was lost")
        return answer

    monkeypatch.setattr(catalog, "commit_table", unanswered)
    stream.land({0: (10, 20)})
    assert rows(stream.tables) == offsets(0, 0, 20)
    table = stream.tables.main.refresh()
    used = {
        path.rsplit("/", 1)[-1]
        for snapshot in table.metadata.snapshots
        for path in (snapshot.manifest_list, *(m.manifest_path for m in snapshot.manifests(table.io)))
    }
    assert {name for name in files(stream.tables, table, "metadata") if name.endswith(".avro")} == used


def test_a_commit_that_lost_a_race_is_tried_again_on_the_new_base(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    stream.tables.main.current()
    # Somebody else changes the table after the writer last saw it.
    other = load_catalog("lake").load_table(stream.spec.table.identifier)
    other.append(other.scan(limit=0).to_arrow())
    stream.land({0: (10, 20)})
    assert rows(stream.tables) == offsets(0, 0, 20)


def test_a_table_that_was_rolled_back_is_refused(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    first = stream.tables.main.refresh().current_snapshot()
    assert first is not None
    stream.land({0: (10, 20)})
    stream.land({0: (20, 30)})
    table = stream.tables.main.refresh()
    back = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=first.snapshot_id)
    table.catalog.commit_table(table, (), (back,))
    with pytest.raises(RolledBack):
        made().begin()


def test_of_two_journals_of_one_batch_the_first_stays(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    journal = staged(stream, 10, 20)
    assert not stream.tables.journals.put(dataclasses.replace(journal, created_at_ms=NOW_MS + 1))
    assert stream.committer.commit(journal).offsets[stream.topic, 0] == 20  # type: ignore[union-attr]
