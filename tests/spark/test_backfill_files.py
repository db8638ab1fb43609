"""Backfills from files instead of Kafka, by coordinates: each record lands once; records without coordinates do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from frazil.audit.findings import FindingKind
from frazil.audit.stream_audit import audit_stream
from frazil.backfill.commit import BackfillCommitter
from frazil.backfill.request import parse_request
from frazil.backfill.run import Backfill, open_backfill
from frazil.backfill.stage import run
from frazil.cli.main import frazil
from frazil.commit.backfill_records import BackfillState, read_backfill
from frazil.commit.committer import Committer
from frazil.commit.journal import NO_DEAD_LETTERS, Journal
from frazil.commit.marker import BatchKey
from frazil.commit.open_streams import open_stream
from frazil.errors import SpecError, WriterBusy
from frazil.ingest.contract import RangeProgress
from frazil.offsets.spans import SourceIdentity
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table
from tests.in_process_engine import InProcessEngine

LIVE = 1000
PARTITIONS = (("events", 0), ("events", 1))
SOURCE = SourceIdentity("cluster", {"events": "topic"})
NOWHERE = "127.0.0.1:1"

Written = Callable[..., str]


@pytest.fixture
def live(tmp_path: Path, declared_stream: Callable[..., Any], frazil_home: Path) -> Any:  # noqa: ARG001
    """A stream that read two partitions which compaction had emptied; its Kafka is nowhere by now."""
    stream = declared_stream(tmp_path, name="events", topic="events", bootstrap=NOWHERE)
    table = ensure_table(load_catalog(None), stream.spec)
    tables = open_stream(stream.spec).tables
    committer = Committer.take_over(tables, source=SOURCE, initial=lambda: dict.fromkeys(PARTITIONS, 0))
    batch = Journal(
        stream=stream.name,
        key=BatchKey(committer.epoch, 1),
        table_uuid=str(table.metadata.table_uuid),
        created_at_ms=tables.clock_ms(),
        source=SOURCE,
        progress=tuple(RangeProgress(*tp, 0, LIVE, 0, 0, None) for tp in PARTITIONS),
        files=(),
        newest_dead_letters=NO_DEAD_LETTERS,
        idle=frozenset(),
        offsets_after=dict.fromkeys(PARTITIONS, LIVE),
    )
    assert tables.journals.put(batch)
    committer.commit(batch)
    return stream


def record(number: int, event: Callable[[int], bytes]) -> dict[str, Any]:
    """Even numbers are of partition 0, odd ones of partition 1; offsets have gaps, as a compacted topic's."""
    place = {"kafka_topic": "events", "kafka_partition": number % 2, "kafka_offset": number // 2 * 3}
    return {**json.loads(event(number)), **place, "kafka_timestamp": "2024-01-01T00:00:00.250Z"}


@pytest.fixture
def archive(tmp_path: Path, event: Callable[[int], bytes]) -> Any:
    """Write a file of records by their numbers, in the format of the name's suffix."""
    folder = tmp_path / "archive"
    folder.mkdir()

    def write(name: str, numbers: Any, *more: bytes, without: str = "", **changed: Any) -> str:
        rows = [{k: v for k, v in {**record(n, event), **changed}.items() if k != without} for n in numbers]
        path = folder / name
        if name.endswith(".parquet"):
            pq.write_table(_table(rows), path, use_deprecated_int96_timestamps="int96" in name, row_group_size=50)
        else:
            path.write_bytes(b"\n".join([*(json.dumps(row).encode() for row in rows), *more]))
        return str(folder)

    return write


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Types as other tools write them: small integers, nanoseconds, a dictionary of texts."""
    for row in rows:
        for name in ("at", "kafka_timestamp"):
            if isinstance(row.get(name), str):
                row[name] = datetime.fromisoformat(row[name])
    table = pa.Table.from_pylist(rows)
    casts = {"id": pa.int32(), "at": pa.timestamp("ns", "UTC"), "kafka_topic": pa.dictionary(pa.int8(), pa.string())}
    if not pa.types.is_integer(table["id"].type):
        del casts["id"]
    fields = [pa.field(f.name, casts.get(f.name, f.type)) for f in table.schema]
    return table.cast(pa.schema(fields))


@contextmanager
def asking(stream: Any, **requested: Any) -> Iterator[Backfill]:
    raw = {"stream": stream.name, **{k.replace("_", "-"): v for k, v in requested.items()}}
    with open_backfill(stream.spec, parse_request(raw)) as backfill:
        yield backfill


def rejected(stream: Any) -> list[tuple[int, bytes]]:
    dead_letters = stream.table("_dead_letters").scan().to_arrow()
    return list(zip(dead_letters["kafka_offset"].to_pylist(), dead_letters["value"].to_pylist(), strict=True))


def test_parquet_and_json_files_land_once_after_a_kill_without_records_that_exist_already(
    live: Any, archive: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = b'{"id": "x", "kafka_topic": "events", "kafka_partition": 0, "kafka_offset": 998}'
    archive("a.parquet", range(200))
    archive("b-int96.parquet", range(200, 250))
    files = archive("c.jsonl", range(250, 400), b"", bad)
    archive("_temporary.parquet", [5])
    said = dry_run(live, files)
    assert "401 of 401 records in 3 files (" in said
    assert "400 rows and 1 dead letter, counted exactly:" in said
    assert "fall into 1 partition" in said
    assert read_backfill(live.table().properties, live.name) is None
    with asking(live, files=files, chunk_records=150) as backfill, monkeypatch.context() as patch:
        patch.setattr(BackfillCommitter, "_commit", committed_and_killed)
        with pytest.raises(KeyboardInterrupt):
            run(backfill, InProcessEngine())
    killed = read_backfill(live.table().properties, live.name)
    assert (killed.state, killed.chunks, killed.planned, live.ids()) == (BackfillState.STAGING, 1, 3, [])
    with asking(live, files=files) as backfill:
        done = run(backfill, InProcessEngine())
    assert (done.id, done.state, done.chunks) == (killed.id, BackfillState.PUBLISHED, 2)
    assert (done.records, done.rejected) == (400, 1)
    assert live.ids() == list(range(400))
    assert rejected(live) == [(998, bad)]
    (finding,) = audit_stream(open_stream(live.spec).tables).findings
    assert (finding.kind, finding.count) == (FindingKind.NOT_COMPARED, 1), "the dead letter may hide a lost row"
    rows = live.table().scan(row_filter="id >= 198 and id < 252").to_arrow().sort_by("id")
    expected = [datetime(2024, 1, 1, 0, 0, n // 10, tzinfo=UTC) for n in range(198, 252)]
    assert rows["at"].to_pylist() == expected
    assert set(rows["kafka_timestamp"].to_pylist()) == {datetime(2024, 1, 1, 0, 0, 0, 250_000, UTC)}

    archive("d.ndjson", range(400, 420))
    with asking(live, files=files, to_event_time="2024-01-01T00:00:41Z") as backfill:
        assert backfill.source.max_records(backfill.plan().spans) == 20, "the others are in the tables"
        assert run(backfill, InProcessEngine()).records == 10
    assert live.ids() == list(range(410))


def test_a_declared_default_fills_the_records_of_both_kinds_of_files(live: Any, archive: Written) -> None:
    declared = live.streams / "events.yaml"
    text = declared.read_text().replace(
        "at: timestamptz not null", "at: {type: timestamptz, required: true, default: '2024-01-01T00:00:00Z'}"
    )
    declared.write_text(text.replace("note: string", "note: {type: string, default: none}"))
    archive("a.parquet", [0, 1], without="note")
    archive("c.parquet", [4, 5], without="at")
    archive("d.jsonl", [6, 7], without="note")
    files = archive("e.jsonl", [8, 9], without="at")
    with asking(live, files=files) as backfill:
        assert run(backfill, InProcessEngine()).records == 8
    rows = live.table().scan().to_arrow().sort_by("id").to_pylist()
    without_note, without_time = (0, 1, 6, 7), (4, 5, 8, 9)
    assert {row["note"] for row in rows if row["id"] in without_note} == {"none"}
    assert {row["at"] for row in rows if row["id"] in without_time} == {datetime(2024, 1, 1, tzinfo=UTC)}


def dry_run(stream: Any, files: str) -> str:
    arguments = ["backfill", stream.name, "--streams", str(stream.streams), "--files", files, "--dry-run"]
    return CliRunner().invoke(frazil, arguments, catch_exceptions=False).stdout


COMMIT = BackfillCommitter._commit


def committed_and_killed(committer: BackfillCommitter, journal: Any, *, planned: int) -> None:
    COMMIT(committer, journal, planned=planned)
    raise KeyboardInterrupt


REFUSED: dict[str, tuple[Callable[[Written], str], str]] = {
    "a file without coordinates": (lambda w: w("a.parquet", [1], without="kafka_offset"), "a.parquet has no column ka"),
    "a file without a required column": (lambda w: w("a.parquet", [1], without="at"), "a.parquet has no column at"),
    "a column of a wrong type": (lambda w: w("a.parquet", [1], id="x"), "a.parquet: column id has type string"),
    "a null where a value must be": (lambda w: w("a.parquet", [1], at=None), "a.parquet: column at"),
    "a line that is no JSON": (lambda w: w("a.json", [1], b"", b"{"), "a.json, line 3: .* coordinates cannot be read"),
    "a line without coordinates": (
        lambda w: w("a.json", [1], without="kafka_partition"),
        "a.json, line 1: .* coordinates .* missing or null",
    ),
    "what is no Parquet": (lambda w: w("a.json", []) and broken(w("a.json", [])), "b.parquet cannot be read"),
    "a record that is there twice": (
        lambda w: w("a.json", [1, 2]) and w("b.parquet", [2]),
        "b.parquet: frazil cannot determine which",
    ),
    "a record that the stream will read": (
        lambda w: w("a.json", [1], kafka_offset=LIVE),
        "itself will read from offset 1,000",
    ),
    "a partition of another topic": (lambda w: w("a.json", [1], kafka_topic="x"), "does not read x-1"),
    "no files": (lambda w: w("a.csv", [1]), "no files to backfill"),
}


def broken(folder: str) -> str:
    (Path(folder) / "b.parquet").write_bytes(b"PAR1 it is not")
    return folder


@pytest.mark.parametrize("what", REFUSED)
def test_unsupported_backfill_files_are_refused_before_anything_is_staged(
    live: Any, archive: Written, what: str
) -> None:
    make, said = REFUSED[what]
    with pytest.raises(SpecError, match=said), asking(live, files=make(archive)) as backfill:
        backfill.plan()


def test_files_that_changed_are_another_backfill_and_never_join_one_that_is_under_way(
    live: Any, archive: Written
) -> None:
    files = archive("a.jsonl", range(10))
    with asking(live, files=f"{files}/a.jsonl") as backfill:
        planned = backfill.request
        BackfillCommitter.begin(backfill.opened.tables, planned)
        archive("a.jsonl", range(11))
        with pytest.raises(SpecError, match="have changed since this backfill was planned"):
            backfill.plan()
    with pytest.raises(SpecError, match="have changed"), open_backfill(live.spec, planned):
        pass
    with asking(live, files=f"{files}/a.jsonl") as backfill, pytest.raises(WriterBusy, match="--abandon"):
        BackfillCommitter.begin(backfill.opened.tables, backfill.request)
