"""`frazil dlq` at a terminal, on tables without a Kafka."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.schema import Schema

from frazil.cli.main import frazil
from frazil.commit.backfill_records import BackfillMarker, BackfillState, property_name, read_backfill
from frazil.commit.committer import Committer
from frazil.commit.open_streams import open_stream
from frazil.errors import FrazilError, SchemaIncompatible, SpecError
from frazil.ingest.sealing import OMITTED
from frazil.offsets.spans import SourceIdentity
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_dead_letters, ensure_table
from tests.made_batches import MadeStream

STREAM = """
name: made
source: {topics: [made], bootstrap-servers: "127.0.0.1:1"}
table: demo.made
schema: {at: timestamptz}
event-time: at
"""

HEADERS = [{"name": "a", "value": b"\xff"}, {"name": "b", "value": None}, {"name": "a", "value": b"2"}]


@pytest.fixture
def streams(frazil_home: Path, tmp_path: Path) -> Path:  # noqa: ARG001
    """A stream with two dead letters of one reason and one of another."""
    folder = tmp_path / "streams"
    folder.mkdir()
    (folder / "made.yaml").write_text(STREAM)
    spec, catalog = load_stream(folder / "made.yaml"), load_catalog(None)
    ensure_table(catalog, spec)
    table = ensure_dead_letters(catalog, spec)
    when = datetime(2013, 12, 30, 10, tzinfo=UTC)
    row = {
        "kafka_topic": "made",
        "kafka_partition": 0,
        "stream": "made",
        "error": "it is not JSON",
        "rejected_at": when,
    }
    dead_letters = [("NotJson", b"\xffno"), ("NotJson", None), ("WrongType", b"{}")]
    rows = [
        {**row, "kafka_offset": n, "error_class": of, "value": value, "headers": HEADERS if of == "WrongType" else None}
        for n, (of, value) in enumerate(dead_letters)
    ]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    return folder


def call(streams: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(frazil, ["dlq", *arguments, "--streams", str(streams)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_dead_letters_are_counted_shown_and_discarded_once(streams: Path) -> None:
    assert [line.split() for line in call(streams, "list", "made").splitlines()[1:]] == [
        ["2013-12-30", "NotJson", "2", "0", "0"],
        ["2013-12-30", "WrongType", "1", "0", "0"],
    ]
    assert call(streams, "show", "made", "--limit", "1").splitlines() == [
        "made[0]@0  2013-12-30 10:00:00Z  NotJson: it is not JSON",
        "    value: \\xffno",
        "2 more dead letters not shown; --limit shows more.",
    ]
    assert "not shown" not in call(streams, "show", "made", "--limit", "3")
    because = ("discard", "made", "--reason", "NotJson", "--because", "a test")
    assert call(streams, *because, "--dry-run") == "2 dead letters of stream made would be discarded.\n"
    call(streams, *because, code=2)
    assert call(streams, *because, "--yes") == "2 dead letters of stream made discarded.\n"
    none = "no dead letters are left that match.\n"
    assert call(streams, *because, "--yes") == f"Stream made: nothing to discard, because {none}"
    found = json.loads(call(streams, "list", "made", "--all", "--json"))
    assert [(c["reason"], c["dead-letters"], c["discarded"]) for c in found] == [("NotJson", 2, 2), ("WrongType", 1, 0)]
    shown = json.loads(call(streams, "show", "made", "--all", "--json", "--reason", "NotJson"))
    assert all(": a test" in dead_letter["discarded"] for dead_letter in shown)
    assert {dead_letter["rejected-at-ms"] for dead_letter in shown} == {1_388_397_600_000}
    assert call(streams, "show", "made", "--from", "2014-01-01T00:00:00Z") == (
        "Stream made has no such dead letters. With --all, discarded ones are included.\n"
    )


def test_the_first_dead_letters_are_shown_by_topic_partition_and_offset_whatever_came_first(streams: Path) -> None:
    dead_letters = open_stream(load_stream(streams / "made.yaml")).tables.dead_letters.current()
    row = dead_letters.scan("error_class = 'WrongType'").to_arrow().to_pylist()[0]
    places = [("made", 0, 12), ("made", 0, 9), ("made", 1, 0), ("late", 3, 10)]
    rows = [{**row, "kafka_topic": t, "kafka_partition": p, "kafka_offset": n} for t, p, n in places]
    for one in rows:  # a file each
        dead_letters.append(pa.Table.from_pylist([one], schema=dead_letters.schema().as_arrow()))
    shown = json.loads(call(streams, "show", "made", "--json"))
    assert [one["where"] for one in shown] == [
        "late[3]@10", "made[0]@0", "made[0]@1", "made[0]@2", "made[0]@9", "made[0]@12", "made[1]@0"
    ]  # fmt: skip
    said = call(streams, "show", "made", "--limit", "3").splitlines()
    assert said[-3:-1] == [
        "made[0]@1  2013-12-30 10:00:00Z  NotJson: it is not JSON",
        "    value: none (a tombstone)",
    ]


def test_dlq_show_prints_headers_if_a_dead_letter_has_some(streams: Path) -> None:
    assert call(streams, "show", "made", "--reason", "WrongType").splitlines()[1:] == [
        "    value: {}",
        "    header a: \\xff",
        "    header a: 2",
        "    header b: null",
    ]


def test_dead_letters_older_than_the_headers_column_are_shown_after_it_is_added(streams: Path) -> None:
    spec, catalog = load_stream(streams / "made.yaml"), load_catalog(None)
    made = ensure_dead_letters(catalog, spec)
    rows = made.scan().to_arrow().drop_columns(["headers"])
    columns = [f for f in made.schema().fields if f.name != "headers"]
    catalog.drop_table(made.name())
    catalog.create_table(made.name(), Schema(*columns), properties=made.properties).append(rows)
    assert "header" not in call(streams, "show", "made")
    ensure_dead_letters(catalog, spec)
    assert "header" not in call(streams, "show", "made", "--reason", "NotJson")


def test_an_unknown_dead_letter_reason_is_answered_with_the_existing_reasons(streams: Path) -> None:
    sentence = "Stream made has no dead letters with the reason nope; existing reasons: NotJson, WrongType.\n"
    for command in ("show", "list"):
        assert call(streams, command, "made", "--reason", "nope") == sentence
    assert call(streams, "show", "made", "--reason", "nope", "--reason", "WrongType").startswith(sentence)


@pytest.mark.parametrize(
    ("selection", "command"),
    [
        ("--reason NotJson", "frazil dlq replay made --reason NotJson"),
        ("all", "frazil dlq replay made"),
        ("of NotJson before 2026-01-01T00:00:00+00:00", "frazil dlq replay made"),  # of an earlier version
    ],
)
def test_a_replay_that_was_interrupted_is_reported_where_dead_letters_are_listed(
    streams: Path, selection: str, command: str
) -> None:
    spec = load_stream(streams / "made.yaml")
    request = {"stream": "made", "files": "copy", "dead-letters": selection}
    backfill = BackfillMarker("made", "d-1", request, "d", 1)
    assert "A replay" not in call(streams, "list", "made")
    for state, dead_letter_state, is_shown in (
        (BackfillState.STAGING, BackfillState.STAGING, True),
        (BackfillState.PUBLISHED, BackfillState.STAGING, True),
        (BackfillState.PUBLISHED, BackfillState.PUBLISHED, False),
        (BackfillState.ABANDONED, BackfillState.STAGING, False),
    ):
        opened = open_stream(spec)
        for handle, stands in ((opened.tables.main, state), (opened.tables.dead_letters, dead_letter_state)):
            with handle.refresh().transaction() as change:
                change.set_properties({property_name("made"): replace(backfill, state=stands).to_property()})
        reported = f"A replay of stream made is running, or was interrupted: `{command}` finishes it."
        assert (reported in call(streams, "list", "made")) == is_shown


def test_dead_letters_that_keep_nothing_of_their_record_are_not_counted_as_decoded_again(streams: Path) -> None:
    """The state after `sensitive` was declared: two dead letters keep their earlier value, and one has none."""
    sensitive = "sensitive: {fields: {note: mask}, dead-letters: omit}\n"
    declared = STREAM.replace("{at: timestamptz}", "{at: timestamptz, note: string}") + sensitive
    (streams / "made.yaml").write_text(declared)
    opened = open_stream(load_stream(streams / "made.yaml"))
    Committer.take_over(opened.tables, source=SourceIdentity("c", {"made": "id"}), initial=lambda: {("made", 0): 9})
    dead_letters = opened.tables.dead_letters.refresh()
    row = dead_letters.scan("error_class = 'WrongType'").to_arrow().to_pylist()[0]
    new = {**row, "kafka_offset": 7, "error_class": "Omitted", "value": OMITTED, "headers": None}
    dead_letters.append(pa.Table.from_pylist([new], schema=dead_letters.schema().as_arrow()))
    refused = CliRunner().invoke(frazil, ["dlq", "replay", "made", "--dry-run", "--streams", str(streams)])
    assert "1 dead letter of stream made cannot be replayed: the record itself was not stored" in refused.output
    assert "are not all as declared yet (note)" in str(refused.exception)
    said = call(streams, "replay", "made", "--reason", "Omitted")
    assert said.endswith("Stream made: nothing to replay, because all dead letters that match are left out.\n")
    for words in (("--reason", "Other"), ("--reason", "Other", "--dry-run")):
        said = call(streams, "replay", "made", *words)
        assert said.endswith("Stream made: nothing to replay, because no dead letters are left that match.\n")
    call(streams, "discard", "made", "--because", "a test", "--yes")
    said = call(streams, "replay", "made")
    assert said == "Stream made: nothing to replay, because no dead letters are left.\n"


def test_a_replay_leaves_out_dead_letters_whose_records_the_writer_will_read_again(streams: Path) -> None:
    """The state after a reset: the stream's position is 1, and the dead letters are at 0, 1 and 2."""
    opened = open_stream(load_stream(streams / "made.yaml"))
    Committer.take_over(opened.tables, source=SourceIdentity("c", {"made": "id"}), initial=lambda: {("made", 0): 1})
    said = call(streams, "replay", "made", "--dry-run")
    left = "2 dead letters of stream made are left out: the stream's writer will read their records again.\n"
    assert said.startswith(f"{left}1 dead letter of stream made would be decoded again. 0 would land, and 1 would fail")
    ahead = ("replay", "made", "--reason", "WrongType")
    one_left = "1 dead letter of stream made is left out: the stream's writer will read its record again.\n"
    none = "Stream made: nothing to replay, because all dead letters that match are left out.\n"
    assert call(streams, *ahead) == one_left + none
    assert '"left-out": {\n    "to-be-read": 1\n  }' in call(streams, *ahead, "--dry-run", "--json")


def test_a_dry_run_of_a_replay_reports_what_would_land_and_why_the_rest_would_fail_again(streams: Path) -> None:
    opened = open_stream(load_stream(streams / "made.yaml"))
    Committer.take_over(opened.tables, source=SourceIdentity("c", {"made": "id"}), initial=lambda: {("made", 0): 9})
    before = opened.tables.dead_letters.refresh().metadata
    fails = call(streams, "replay", "made", "--reason", "NotJson", "--dry-run")
    assert "2 dead letters of stream made would be decoded again. 0 would land, and 2 would fail again." in fails
    assert "NotAnObject (1): made[0]@" in fails
    assert "(1): made[0]@0: " in fails
    assert "`frazil dlq show made --limit 2`, with the same options, shows each record." in fails
    dead_letters = opened.tables.dead_letters.refresh()
    again = {**dead_letters.scan("kafka_offset = 0").to_arrow().to_pylist()[0], "kafka_offset": 6}
    dead_letters.append(pa.Table.from_pylist([again], schema=dead_letters.schema().as_arrow()))
    assert "(2, the first): made[0]@0: " in call(streams, "replay", "made", "--reason", "NotJson", "--dry-run")
    row = dead_letters.scan("error_class = 'WrongType'").to_arrow().to_pylist()[0]
    new = {**row, "kafka_offset": 5, "value": b'{"at": "2013-12-30T10:00:00Z"}'}
    dead_letters.append(pa.Table.from_pylist([new], schema=dead_letters.schema().as_arrow()))
    found = json.loads(call(streams, "replay", "made", "--dry-run", "--json"))
    assert (found["would-land"], found["would-fail"], found["selected"]) == (2, 3, 5)
    assert len(before.snapshots) + 2 == len(opened.tables.dead_letters.refresh().metadata.snapshots)
    assert list(opened.tables.store.list_files(f"{opened.tables.state}/replays")) == []


@pytest.mark.parametrize("which", [(), ("--dry-run",)])
def test_a_replay_and_its_dry_run_are_refused_for_the_same_reasons_and_leave_no_replay(
    streams: Path, which: tuple[str, ...]
) -> None:
    opened = open_stream(load_stream(streams / "made.yaml"))
    Committer.take_over(opened.tables, source=SourceIdentity("c", {"made": "id"}), initial=lambda: {("made", 0): 9})

    def refusal() -> FrazilError:
        arguments = ["dlq", "replay", "made", *which, "--streams", str(streams)]
        error = CliRunner().invoke(frazil, arguments).exception
        assert isinstance(error, FrazilError)
        return error

    (streams / "made.yaml").write_text(STREAM.replace("{at: timestamptz}", "{at: timestamptz, note: string}"))
    refused = refusal()
    assert isinstance(refused, SchemaIncompatible)
    assert "the writer's next start changes them: `frazil run made` (or" in str(refused)
    assert read_backfill(opened.tables.main.refresh().properties, "made") is None
    (streams / "made.yaml").write_text(STREAM)
    backfill = BackfillMarker("made", "d-1", {"stream": "made"}, "d", 1)
    with opened.tables.main.current().transaction() as change:
        change.set_properties({property_name("made"): backfill.to_property()})
    assert "backfill d-1 of stream 'made' is staging" in str(refusal())


@pytest.mark.usefixtures("frazil_home", "in_this_process")
def test_dead_letters_without_a_required_value_land_once_its_column_is_optional(tmp_path: Path) -> None:
    declared = STREAM.replace("{at: timestamptz}", "{at: timestamptz, note: string not null}")
    (tmp_path / "made.yaml").write_text(declared)
    made = MadeStream(load_stream(tmp_path / "made.yaml"), time.time_ns() // 1_000_000, partitions=1)
    made.columns = lambda rows: {"note": pa.array(["x"] * rows)}
    made.land({0: (0, 4)}, rejected={0: [1]})
    dead_letters = made.tables.dead_letters.refresh()
    (row,) = dead_letters.scan().to_arrow().to_pylist()
    dead_letters.overwrite(
        pa.Table.from_pylist(
            [{**row, "value": b'{"at": "2013-12-30T10:00:00Z"}'}], schema=dead_letters.schema().as_arrow()
        )
    )
    (tmp_path / "made.yaml").write_text(declared.replace(" not null", ""))
    error = CliRunner().invoke(frazil, ["dlq", "replay", "made", "--streams", str(tmp_path)]).exception
    assert "(note); the writer's next start changes them: `frazil run made` (or" in str(error)
    ensure_table(load_catalog(None), load_stream(tmp_path / "made.yaml"))  # as the start does
    assert call(tmp_path, "replay", "made") == "Stream made: 1 dead letter is a row now; 0 failed again.\n"


def test_dead_letters_that_cannot_be_replayed_are_refused_before_they_are_counted(streams: Path) -> None:
    (streams / "made.yaml").write_text(STREAM + "coordinates: false\n")
    done = CliRunner().invoke(frazil, ["dlq", "replay", "made", "--dry-run", "--streams", str(streams)])
    assert isinstance(done.exception, SpecError)
    assert "does not store Kafka coordinates" in str(done.exception)


@pytest.mark.usefixtures("frazil_home")
def test_dead_letters_of_a_former_topic_are_named_where_they_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "declared"
    folder.mkdir()
    (folder / "made.yaml").write_text(STREAM)
    made = MadeStream(load_stream(folder / "made.yaml"), time.time_ns() // 1_000_000, partitions=1)
    made.land({0: (0, 4)}, rejected={0: [1]})
    assert "In a replay" not in call(folder, "list", "made")
    made.topic_id = "topic-2"
    made.reset({0: 0})
    said = "In a replay, 1 dead letter of stream made is left out: the topic has been recreated"
    assert said in call(folder, "list", "made")
    call(folder, "replay", "made", "--yes")


def test_a_dead_letter_reason_must_be_an_error_class(streams: Path) -> None:
    assert "error class" in call(streams, "list", "made", "--reason", "x' or 1=1", code=2)
