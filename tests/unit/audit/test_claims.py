"""Commit records that snapshots name and that are missing."""

from __future__ import annotations

import pytest

from frazil.audit.findings import FindingKind
from frazil.audit.stream_audit import audit_stream
from frazil.commit.marker_changes import adopt, forget
from frazil.spec.model import StreamSpec
from tests.made_batches import MadeStream

pytestmark = pytest.mark.usefixtures("frazil_home")
DECLARED = {
    "name": "s",
    "table": "demo.t",
    "source": {"topics": ["t"], "bootstrap-servers": "b:9092"},
    "schema": {"id": "long", "at": "timestamptz"},
    "event-time": "at",
}


@pytest.fixture
def made() -> MadeStream:
    return MadeStream(StreamSpec.model_validate(DECLARED), 1_800_000_000_000, partitions=1)


def test_a_deleted_commit_record_is_no_skipped_range_though_its_batch_left_no_row(made: MadeStream) -> None:
    made.land({0: (0, 10)})
    made.land({0: (10, 20)}, written={0: []})  # its rows are lost too
    key = made.tables.marker().at  # type: ignore[union-attr]
    made.land({0: (20, 30)}, rejected={0: range(20, 30)})
    made.tables.store.delete([made.tables.journals.path(key)])
    found = audit_stream(made.tables)
    assert not found.clean
    (gone,) = found.wrong
    assert gone.kind is FindingKind.RECORD_GONE
    assert made.tables.journals.path(key) in gone.sentence


def test_records_that_frazil_forget_deleted_are_not_missed(made: MadeStream) -> None:
    made.land({0: (0, 10)})
    forget(made.tables, state=made.tables.state)
    adopt(made.tables, offsets={("t", 0): 10}, source=made.source)
    made.begin()
    made.land({0: (10, 20)})
    (found,) = audit_stream(made.tables).findings
    assert found.sentence == "10 rows are before the first commit record, at offset 10"
