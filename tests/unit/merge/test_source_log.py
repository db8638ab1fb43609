"""Captured changes in the order of their source's log: what was sent again is stale, a log that begins anew is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from frazil.ingest.changes import CHANGE, DELETE, KEPT
from frazil.merge.contract import Counts, MergeRules
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec
from tests.unit.ingest.test_envelope import ROW, SOURCE, SPEC, decode, event
from tests.unit.merge.made_table import MadeTable

FIRST_MS = 1_767_225_600_000
MYSQL = {"version": "3.6", "connector": "mysql", "name": "shop", "snapshot": "false", "db": "shop", "table": "orders",
         "server_id": 1, "gtid": None, "row": 0}  # fmt: skip
SCHEMA = Schema(*iceberg.schema(StreamSpec.model_validate(SPEC)).fields)

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
        self.counts, self._offset = Counts(), 0

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


def captured(batches: Sequence[Sequence[Change]]) -> tuple[str | None, Counts]:
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
    "another server, or RESET MASTER": [
        of_mysql("mysql-bin.000742", 100, 0, "v1"),
        of_mysql("mysql-bin.000742", 900, 1, "v2"),
        of_mysql("mysql-bin.000001", 157, 2, "v3"),
        of_mysql("mysql-bin.000001", 200, 3, "v4"),
    ],
    "a server with other names": [
        of_mysql("mysql-bin.000742", 100, 0, "v1"),
        of_mysql("binlog.000900", 4, 1, "v2"),
    ],
    "a restored PostgreSQL": [
        of_postgres(900_000_000, 0, "v1"),
        of_postgres(900_000_500, 1, "v2"),
        of_postgres(24_000_000, 2, "v3"),
        of_postgres(24_000_900, 2, "v4"),
    ],
    "a delete in a log that began anew": [of_postgres(900, 0, "v1"), of_postgres(24, 1, None)],
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
def test_what_is_sent_again_is_stale_until_it_has_caught_up(log: list[Change], *, together: bool) -> None:
    """A connector that was killed sends the events of its present log again, from any of them on."""
    final = captured([log])[0]
    again = [one for one in log if one["source"]["snapshot"] == "false"][-2:-1]  # older than the last of its log
    if len(log) > 2:
        assert captured([[*log, *again]] if together else [log, again])[0] == final


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_whatever_is_sent_again_and_however_it_is_cut_the_row_is_that_of_the_newest_log(data: st.DataObject) -> None:
    """Of several logs, one after the other, each event is sent in order, and any stretch of the present log again."""
    sent: list[Change] = []
    number = second = 0
    for begins in data.draw(st.lists(st.integers(1, 10**7), min_size=1, max_size=3)):
        second += 1
        log: list[Change] = []
        for step in data.draw(st.lists(st.integers(1, 100), min_size=1, max_size=4)):
            number, second = number + 1, second + data.draw(st.integers(0, 2))
            log.append(of_mysql(f"mysql-bin.{begins:06}", 4 + 1000 * len(log) + step, second, f"v{number}"))
            sent.append(log[-1])
            if data.draw(st.booleans()):
                sent += log[data.draw(st.integers(0, len(log) - 1)) :]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)))) | {0, len(sent)})
    for end in cuts[1:]:
        batches = [sent[a:b] for a, b in zip(cuts, [c for c in cuts[1:] if c <= end], strict=False)]
        newest = max((one["after"]["name"] for one in sent[:end]), key=lambda name: int(name[1:]))
        assert captured(batches)[0] == newest


def test_a_row_keeps_its_position_beside_an_event_without_one() -> None:
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
    assert row[CHANGE] != DELETE
    assert row[KEPT] is None
