"""Measurements of a table match its contents, and read few files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary

from frazil.cli.health import _health_fields
from frazil.commit.history import FOLD_OPERATION
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.lock import WriterLock
from frazil.maintenance.health import ManifestGroup, RecentFiles, TableHealth
from frazil.maintenance.measure import MAX_COMMIT_RECORDS, measure
from frazil.maintenance.tables import find_maintained
from frazil.table.catalogs import load_catalog
from frazil.table.storage import LocalStore
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import BEGIN_MS, land

REWRITTEN = {"added-data-files": "2", "deleted-data-files": "8", "added-files-size": "1420"}
MANIFESTS_REWRITTEN = {"manifests-created": "1", "manifests-replaced": "4", "entries-processed": "0"}
DELETES_REWRITTEN = {"added-delete-files": "1", "removed-delete-files": "1", "added-files-size": "1460"}
"""What Spark's actions of Iceberg 1.12.0 wrote into the summaries of their `replace` snapshots."""


def measured(
    made: MadeStream, table: str = "demo.made", *, catalog: Any = None, now_ms: int = 0, **options: bool
) -> TableHealth:
    found = measure(catalog or load_catalog(None), find_maintained([made.spec], table), now_ms=now_ms, **options)
    assert found is not None
    return found


class Edited:
    """A catalog whose table was written by something else than frazil."""

    name = "edited"

    def __init__(self, edit: Callable[[Table], None]) -> None:
        self._inner: Catalog = load_catalog(None)
        self._edit = edit

    def load_table(self, identifier: str) -> Table:
        table = self._inner.load_table(identifier)
        self._edit(table)
        return table


def resay(table: Table, at: int, operation: str, **summary: str) -> None:
    """Give a snapshot another summary."""
    snapshots = table.metadata.snapshots
    snapshots[at] = snapshots[at].model_copy(update={"summary": Summary(Operation(operation), **summary)})


def size(location: str) -> int:
    return Path(location.removeprefix("file://")).stat().st_size


def test_a_table_that_does_not_exist_has_no_health(made: MadeStream):
    assert measure(load_catalog(None), find_maintained([made.spec], "demo.made"), now_ms=0) is None


def test_an_empty_table_is_measured(made: MadeStream):
    table = made.tables.main.current()
    assert table.current_snapshot() is None
    found = measured(made)
    assert (found.snapshot_id, found.data_files, found.manifest_list_bytes, found.recent) == (None, 0, 0, None)
    assert found.metadata_bytes == size(table.metadata_location)


def test_the_measured_health_equals_the_tables_metadata(made: MadeStream):
    land(made, 3)
    table, found = made.tables.main.refresh(), measured(made)
    files = table.inspect.files().to_pylist()
    head = table.current_snapshot()
    assert head is not None
    assert (found.snapshot_id, found.data_files, found.rows) == (head.snapshot_id, len(files), 6)
    assert found.data_bytes == sum(f["file_size_in_bytes"] for f in files)
    total = sum(size(m.manifest_path) for m in head.manifests(table.io))
    assert (found.manifests, found.manifests_bytes) == (3, total)
    assert found.manifest_groups == (ManifestGroup(0, deletes=False, manifests=3, bytes=total),)
    assert found.manifest_list_bytes == size(head.manifest_list)
    assert found.metadata_bytes == size(table.metadata_location)
    assert found.snapshots == len(table.metadata.snapshots)
    assert (found.target_file_bytes, found.delete_files, found.partitions) == (4096, 0, None)
    assert found.oldest_snapshot_at_ms == table.metadata.snapshots[0].timestamp_ms


def test_no_manifest_is_opened_and_reads_do_not_grow_with_the_table(made: MadeStream, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    new_input, get = PyArrowFileIO.new_input, LocalStore.get
    monkeypatch.setattr(PyArrowFileIO, "new_input", lambda io, path: (read.append(path), new_input(io, path))[1])
    monkeypatch.setattr(LocalStore, "get", lambda store, path: (read.append(path), get(store, path))[1])
    catalog = load_catalog(None)
    counts = []
    for batches in (MAX_COMMIT_RECORDS, 8):
        land(made, batches)
        read.clear()
        measured(made, catalog=catalog)
        counts.append(len(read))
        assert not [path for path in read if "-m" in Path(path).name and path.endswith(".avro")]
    # metadata.json and the manifest list, each read once and asked once for its length, and the records
    assert counts == [4 + MAX_COMMIT_RECORDS] * 2


def test_totals_that_no_summary_has_come_from_the_manifest_list(made: MadeStream):
    land(made, 3)

    def forget_totals(table: Table) -> None:
        for at in range(len(table.metadata.snapshots)):
            resay(table, at, "append")

    found = measured(made, catalog=Edited(forget_totals))
    assert (found.data_files, found.rows, found.delete_files, found.data_bytes) == (6, 6, 0, 0)


def test_a_compressed_metadata_file_is_measured_uncompressed(made: MadeStream, tmp_path: Path):
    table = made.tables.main.current()
    plain = Path(table.metadata_location.removeprefix("file://"))
    packed = tmp_path / "v1.gz.metadata.json"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    def move(loaded: Table) -> None:
        loaded.metadata_location = str(packed)

    assert measured(made, catalog=Edited(move)).metadata_bytes == plain.stat().st_size > packed.stat().st_size


@pytest.mark.parametrize("later", [{}, MANIFESTS_REWRITTEN, DELETES_REWRITTEN])
def test_growth_since_the_last_compaction_counts_only_later_data_files(made: MadeStream, later: dict[str, str]):
    land(made, 4)
    added = measured(made).bytes_since_compaction // 4

    def compact(table: Table) -> None:
        resay(table, 2, "replace", **REWRITTEN)
        if later:
            resay(table, 3, "replace", **later)

    found = measured(made, catalog=Edited(compact))
    assert found.last_compaction_at_ms == BEGIN_MS + 2 * 60_000
    batches = 1 if later else 2
    assert (found.files_since_compaction, found.bytes_since_compaction) == (2 * batches, added * batches)


def test_a_compaction_whose_rewrite_expired_is_known_by_its_commit_that_dropped_delete_files(made: MadeStream):
    land(made, 3)

    def compact(table: Table) -> None:
        resay(table, -1, "replace", **{"frazil.operation": "compaction", "removed-delete-files": "70"})

    found = measured(made, catalog=Edited(compact))
    assert found.last_compaction_at_ms == BEGIN_MS + 3 * 60_000
    assert (found.files_since_compaction, found.bytes_since_compaction) == (0, 0)


def test_folds_are_counted_and_are_no_compaction(made: MadeStream):
    land(made, 4)

    def fold(table: Table) -> None:
        for at in (1, 2):
            resay(table, at, "replace", **REWRITTEN, **{"frazil.operation": FOLD_OPERATION})

    found = measured(made, catalog=Edited(fold), now_ms=BEGIN_MS + 5 * 60_000)
    assert (found.folds, found.last_fold_at_ms) == (2, BEGIN_MS + 2 * 60_000)
    assert found.last_compaction_at_ms is None
    assert _health_fields(found)["folded"] == "2 times by writers in its history, last 3 min 0 s ago"
    assert "folded" not in _health_fields(measured(made))


def test_a_table_that_was_never_compacted_counts_all_its_small_files_though_snapshots_expired(made: MadeStream):
    land(made, 3)
    table = made.tables.main.refresh()
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[-2].snapshot_id).commit()
    found = measured(made)
    assert (found.last_compaction_at_ms, found.files_since_compaction) == (None, 6)
    assert found.bytes_since_compaction == found.data_bytes

    def enlarge(table: Table) -> None:
        head = table.current_snapshot()
        assert head is not None
        assert head.summary is not None
        resay(table, -1, "append", **{**head.summary.additional_properties, "total-files-size": str(2**30)})

    found = measured(made, catalog=Edited(enlarge))
    assert found.files_since_compaction == 2, "large files may come from a compaction that expired"


def test_recent_files_are_those_of_the_newest_records_that_are_left(made: MadeStream):
    land(made, 3)
    first = measured(made).recent
    assert first is not None
    assert first == RecentFiles(3, 6, measured(made).data_bytes, first.p10_bytes, 6)
    assert first.files_per_partition == 1
    land(made, MAX_COMMIT_RECORDS)
    assert (recent := measured(made).recent)
    assert recent.commits == MAX_COMMIT_RECORDS
    marker = made.tables.marker()
    assert marker is not None
    Path(made.tables.journals.path(marker.key).removeprefix("file://")).unlink()
    assert (left := measured(made).recent)
    assert left.commits == MAX_COMMIT_RECORDS - 1


def test_a_stream_is_reported_with_its_last_commit_and_watermark(made: MadeStream):
    land(made, 1)
    (stream,) = measured(made).streams
    assert (stream.name, stream.lag, stream.last_commit_at_ms) == ("made", None, BEGIN_MS + 60_000)


def test_a_stream_reports_its_longest_commit_interval(made: MadeStream):
    land(made, 1)
    assert measured(made).streams[0].longest_interval_ms == 60_000
    commit = {"interval": timedelta(minutes=5), "throttle": "stretch", "max_interval": timedelta(minutes=30)}
    made.spec = made.spec.model_copy(update={"commit": made.spec.commit.model_copy(update=commit)})
    assert measured(made).streams[0].longest_interval_ms == 30 * 60_000


def test_if_no_batch_remains_in_the_history_its_age_is_taken_from_the_markers_snapshot(made: MadeStream):
    land(made, 1)
    made.now_ms += 60_000
    made.begin()

    def expire(table: Table) -> None:
        del table.metadata.snapshots[:-1]

    (stream,) = measured(made, catalog=Edited(expire)).streams
    assert stream.last_commit_at_ms == BEGIN_MS + 2 * 60_000


def test_the_lag_is_reported_only_from_a_recent_heartbeat_of_a_live_writer(made: MadeStream):
    land(made, 1)
    heartbeat = Heartbeat("made", 7, "f", Phase.WAITING, written_at_ms=BEGIN_MS, advanced_at_ms=BEGIN_MS, lag=12)
    with WriterLock(run_folder("made")):
        heartbeat.write(run_folder("made"))
        assert measured(made, now_ms=BEGIN_MS + 1_000).streams[0].lag == 12
        assert measured(made, now_ms=BEGIN_MS + 60_000).streams[0].lag is None


def test_dead_letters_are_measured_by_their_own_files_and_have_no_streams(made: MadeStream):
    made.land({0: (0, 5)}, rejected={0: [3, 4]})
    found = measured(made, "demo.made_dead_letters")
    assert (found.rows, found.data_files, found.streams) == (2, 1, ())
    assert found.recent is not None
    assert (found.recent.files, found.recent.bytes) == (1, found.data_bytes)
