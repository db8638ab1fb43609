"""Captured changes in the order of their source's log: resent changes are stale, those of a new log are not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS
from frazil.merge.contract import MergeCounts, MergeRules
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec
from tests.unit.ingest.test_envelope import ROW, SOURCE, SPEC, decode, event
from tests.unit.merge.made_table import MadeTable

FIRST_MS = 1_767_225_600_000
HOURS = 7200
LONG_STATEMENT = 600
MYSQL = {"version": "3.6", "connector": "mysql", "name": "shop", "snapshot": "false", "db": "shop", "table": "orders",
         "server_id": 1, "gtid": None, "row": 0}  # fmt: skip
SCHEMA = Schema(*iceberg.table_schema(StreamSpec.model_validate(SPEC)).fields)

Change = dict[str, Any]


def of_mysql(file: str, pos: int, second: int, name: str | None, **more: Any) -> Change:
    return _event({**MYSQL, "file": file, "pos": pos, "ts_ms": FIRST_MS + 1000 * second, **more}, name)


def of_postgres(lsn: int | None, second: int, name: str | None, **more: Any) -> Change:
    return _event({**SOURCE, "lsn": lsn, "ts_ms": FIRST_MS + 1000 * second, **more}, name)


def _event(source: dict[str, Any], name: str | None) -> Change:
    if name is None:
        return event("d", before={"id": 1}, source=source)
    op = "r" if source["snapshot"] != "false" else "u"
    return event(op, before={"id": 1}, after={**ROW, "name": name}, source=source)


class Captured:
    """A table into which batches of events are merged as a writer does."""

    def __init__(self, folder: Path) -> None:
        self.table = MadeTable(folder, SCHEMA, MergeRules(("id",), "place", by_position=True))
        self.counts, self._offset = MergeCounts(), 0

    def batch(self, events: Sequence[Change]) -> None:
        decoded = decode(list(events))
        assert decoded.rejections == []
        rows = []
        for row in decoded.rows.to_pylist():
            rows.append({**row, "kafka_offset": self._offset})
            self._offset += 1
        self.counts += self.table.merge(self.table.stage(rows))

    def name(self) -> str | None:
        (row,) = self.table.rows() or [{"name": None}]
        return row["name"]


def captured(batches: Sequence[Sequence[Change]]) -> tuple[str | None, MergeCounts]:
    with TemporaryDirectory() as folder:
        made = Captured(Path(folder))
        for batch in batches:
            made.batch(batch)
        return made.name(), made.counts


LOGS = {
    "a binlog's name gets a seventh digit": [
        of_mysql("mysql-bin.999998", 100, 0, "v1"),
        of_mysql("mysql-bin.999999", 100, 1, "v2"),
        of_mysql("mysql-bin.1000000", 4, 1, "v3"),
        of_mysql("mysql-bin.1000001", 4, 1, "v4"),
    ],
    "and an eighth": [
        of_mysql("mysql-bin.9999999", 100, 0, "v1"),
        of_mysql("mysql-bin.10000000", 4, 0, "v2"),
    ],
    "RESET MASTER, long after": [
        of_mysql("mysql-bin.000742", 100, 0, "v1"),
        of_mysql("mysql-bin.000742", 900, 1, "v2"),
        of_mysql("mysql-bin.000001", 157, HOURS, "v3"),
        of_mysql("mysql-bin.000001", 200, HOURS, "v4"),
    ],
    "another server": [
        of_mysql("mysql-bin.000742", 100, 0, "v1"),
        of_mysql("mysql-bin.000742", 900, 1, "v2"),
        of_mysql("mysql-bin.000001", 157, 2, "v3", server_id=2),
        of_mysql("mysql-bin.000001", 200, 2, "v4", server_id=2),
    ],
    "a server with other names": [
        of_mysql("mysql-bin.000742", 100, 0, "v1"),
        of_mysql("binlog.000900", 4, 1, "v2"),
    ],
    "a server behind a snapshot, whose rows tell none": [
        of_mysql("mysql-bin.000742", 100, 0, "v1", server_id=0, snapshot="true"),
        of_mysql("mysql-bin.000742", 900, 1, "v2"),
    ],
    "a statement that began before the change ahead of it": [
        of_mysql("mysql-bin.000742", 100, 30, "v1"),
        of_mysql("mysql-bin.000742", 150, 50, "v2"),
        of_mysql("mysql-bin.000742", 200, 40, "v3"),
    ],
    "a restored PostgreSQL": [
        of_postgres(900_000_000, 0, "v1"),
        of_postgres(900_000_500, 1, "v2"),
        of_postgres(24_000_000, HOURS, "v3"),
        of_postgres(24_000_900, HOURS, "v4"),
    ],
    "a delete in a log that began again": [of_postgres(900, 0, "v1"), of_postgres(24, HOURS, None)],
    "a chunk within the second of a log that began again": [
        of_mysql("mysql-bin.000742", 900, 0, "v1"),
        of_mysql("mysql-bin.000001", 200, HOURS, "v2"),
        of_mysql("", 0, HOURS, "v3", snapshot="incremental"),
        of_mysql("mysql-bin.000001", 300, HOURS, "v4"),
    ],
    "a chunk of an incremental snapshot, without a position": [
        of_postgres(900, 0, "v1"),
        of_postgres(None, 1, "v2", snapshot="incremental"),
    ],
    "the same in MySQL": [
        of_mysql("mysql-bin.000742", 100, 0, "v1"),
        of_mysql("", 0, 1, "v2", snapshot="incremental"),
        of_mysql("mysql-bin.000742", 200, 1, "v3"),
    ],
}


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in a batch each"])
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_the_newest_change_of_the_source_is_the_row(log: list[Change], *, together: bool) -> None:
    name, counts = captured([log] if together else [[one] for one in log])
    after = log[-1]["after"]
    assert name == (after and after["name"])
    assert counts.stale == 0


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in a batch each"])
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_changes_that_a_connector_sends_again_are_stale(log: list[Change], *, together: bool) -> None:
    """A connector that was killed sends the events of its present log again, from any of them on."""
    final = captured([log])[0]
    again = [one for one in log if one["source"]["snapshot"] == "false"][-2:-1]  # older than the last of its log
    if len(log) > 2:
        assert captured([[*log, *again]] if together else [log, again])[0] == final


@settings(max_examples=max(10, settings().max_examples // 4))
@given(st.data())
def test_the_row_is_that_of_the_newest_log_whatever_events_are_sent_again(data: st.DataObject) -> None:
    """Several logs, one after the other: each event is sent in order, and any stretch of the present log again.

    Statements take long, so that times go back within a log. Rows of snapshots, without a position, lie anywhere.
    """
    sent: list[tuple[tuple[int, int] | None, Change]] = []
    second, server_id, base = LONG_STATEMENT, 1, "mysql-bin"
    for number, begins in enumerate(data.draw(st.lists(st.integers(1, 10**7), min_size=1, max_size=3))):
        how = data.draw(st.sampled_from(["the same server", "another server", "other names"]))
        second += LONG_STATEMENT + (HOURS if how == "the same server" else 1)
        server_id, base = server_id + (how == "another server"), base + "x" * (how == "other names")
        log: list[tuple[tuple[int, int] | None, Change]] = []
        for step in data.draw(st.lists(st.integers(1, 100), min_size=1, max_size=4)):
            second += data.draw(st.integers(0, 2))
            pos = 4 + 1000 * len(log) + step
            began = second - data.draw(st.sampled_from([0, 1, LONG_STATEMENT])) * bool(log)
            of_log = f"{base}.{begins:06}"
            change = of_mysql(of_log, pos, began, f"v{number}.{pos}", server_id=server_id)
            log.append(((number, pos), change))
            sent.append(log[-1])
            if data.draw(st.booleans()):
                sent += log[data.draw(st.integers(0, len(log) - 1)) :]
            if data.draw(st.booleans()):
                sent.append((None, of_mysql("", 0, second, f"s{len(sent)}", snapshot="incremental")))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)))) | {0, len(sent)})
    newest, name = (-1, -1), None
    with TemporaryDirectory() as folder:
        made = Captured(Path(folder))
        for begin, end in pairwise(cuts):
            made.batch([change for _, change in sent[begin:end]])
            for place, change in sent[begin:end]:
                if place is None or place >= newest:
                    newest, name = place or newest, change["after"]["name"]
            assert made.name() == name


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in a batch each"])
@pytest.mark.parametrize(
    "old",
    [
        of_mysql("mysql-bin.000742", 100, 5, "old"),
        of_mysql("mysql-bin.000742", 100, HOURS // 4, "old"),
        of_mysql("mysql-bin.000741", 900, 5, "old"),
        of_mysql("mysql-bin.000742", 100, 5, "old", server_id=0),
    ],
)
def test_a_lower_position_is_stale_though_its_statement_began_later(old: Change, *, together: bool) -> None:
    row = of_mysql("mysql-bin.000742", 200, 3, "row")
    name, _ = captured([[old, row, old]] if together else [[old], [row], [old]])
    assert name == "row"


def test_a_row_keeps_its_log_position_after_an_event_without_one() -> None:
    with TemporaryDirectory() as folder:
        made = Captured(Path(folder))
        made.batch([of_postgres(900, 5, "v1")])
        made.batch([of_postgres(None, 6, "v2", snapshot="incremental")])
        made.batch([of_postgres(800, 4, "old")])
        assert (made.name(), made.counts.stale) == ("v2", 1)


def test_positions_of_earlier_versions_are_below_those_of_the_same_event() -> None:
    (row,) = decode([of_postgres(24_023_128, 0, "a")]).rows.to_pylist()
    assert row["place"] > "00000000000024023128"
    (row,) = decode([of_mysql("mysql-bin.000742", 4, 0, "a")]).rows.to_pylist()
    assert row["place"] > f"mysql-bin.000742/{4:020}/{0:020}"
    assert row["place"] > f"mysql-bin.000742/{4:020}/{0:020}@{FIRST_MS}"
    assert row[CHANGE] != DELETE
    assert row[OMITTED_COLUMNS] is None


def test_a_row_with_a_position_without_time_is_kept_over_each_lower_position() -> None:
    with TemporaryDirectory() as folder:
        made = Captured(Path(folder))
        (row,) = decode([of_postgres(900, 0, "v1")]).rows.to_pylist()
        coordinates = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0}
        made.table.land([{**row, **coordinates, "place": row["place"].partition("@")[0]}])
        made.batch([of_postgres(24, HOURS, "v2")])
        assert (made.name(), made.counts.stale) == ("v1", 1)


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in a batch each"])
def test_a_change_without_a_time_belongs_to_no_log_that_began_earlier(*, together: bool) -> None:
    log = [of_postgres(900, 0, "v1", ts_ms=None), of_postgres(24, HOURS, "v2")]
    assert captured([log] if together else [[one] for one in log])[0] == "v1"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("second", "name"), [(10, "new"), (10, None), (30, "new")])
def test_a_change_that_was_open_at_a_snapshot_wins_over_its_row(
    second: int, name: str | None, *, together: bool
) -> None:
    """A snapshot has the LSN at which it began; the transaction wrote to the log before, and commits later."""
    log = [of_postgres(1000, 20, "old", snapshot="true"), of_postgres(900, second, name)]
    found, counts = captured([log] if together else [[one] for one in log])
    assert (found, counts.stale) == (name, 0)
