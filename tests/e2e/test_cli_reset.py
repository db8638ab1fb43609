"""Each fix that `frazil reset` offers: applied after the real error, until the audit reports no problem."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from frazil.cli.options import current_user
from frazil.commit.marker import property_name
from frazil.errors import AdoptionRequired, MarkerUnreadable, OffsetGap, RolledBack, TopicRecreated
from frazil.history.objects import read_history
from frazil.history.points import EventKind
from frazil.spec.load import find_stream

Frazil = Callable[..., subprocess.CompletedProcess[str]]


def test_a_rolled_back_table_is_written_again_from_its_own_position(stream: Any, events: Any, frazil: Frazil):
    stream.produce([*events(range(400)), b"broken"], partitions=4)
    stream.catch_up()
    first = stream.table().current_snapshot().snapshot_id
    stream.produce([*events(range(400, 1000)), b"broken too"], partitions=4)
    stream.catch_up()
    stream.table().manage_snapshots().rollback_to_snapshot(first).commit()
    assert stream.ids() == list(range(400))
    with pytest.raises(RolledBack):
        stream.catch_up()

    status = json.loads(frazil("status", stream.name, "--json").stdout)["streams"][0]
    assert any("rolled back" in problem for problem in status["problems"])
    refused = frazil("reset", stream.name, "--to", "table")
    assert refused.returncode == 2
    assert "It skips no records, and reads no records again" in refused.stdout
    with pytest.raises(RolledBack):
        stream.catch_up()

    accepting = frazil("reset", stream.name, "--to", "marker")
    assert "It skips 601 offsets" in accepting.stdout
    assert frazil("reset", stream.name, "--to", "table", "--yes").returncode == 0
    reported = read_history(find_stream(stream.streams, stream.name), since_ms=0).events
    said = f"the stream was reset to table by {current_user()}: it skips no offsets and rereads none"
    assert [what.sentence for what in reported if what.kind is EventKind.USER_ACTION] == [said]
    stream.catch_up()
    assert stream.ids() == list(range(1000))
    _check_clean(frazil, stream)


def test_a_manually_edited_marker_is_recovered_from_commit_records(stream: Any, events: Any, frazil: Frazil):
    stream.produce([*events(range(400)), b"broken"], partitions=4)
    stream.catch_up()
    with stream.table().transaction() as change:
        change.set_properties({property_name(stream.name): "edited by hand"})
    with pytest.raises(MarkerUnreadable):
        stream.catch_up()
    assert frazil("reset", stream.name, "--to", "marker", "--yes").returncode == MarkerUnreadable.exit_code
    assert frazil("reset", stream.name, "--to", "table", "--yes").returncode == 0
    stream.produce(events(range(400, 500)), partitions=4)
    stream.catch_up()
    assert stream.ids() == list(range(500))


def test_after_an_offset_gap_the_stream_continues_at_the_first_remaining_offset(
    stream: Any, events: Any, frazil: Frazil, kafka: Any
):
    stream.produce(events(range(400)), partitions=4)
    stream.catch_up()
    stream.produce(events(range(400, 800)), partitions=4)
    admin = kafka.admin()  # held, for its answers die with it
    for answer in admin.delete_records([TopicPartition(stream.topic, 0, 150)]).values():
        answer.result(30)
    with pytest.raises(OffsetGap, match=f"{stream.topic}-0 offsets 100 to 149"):
        stream.catch_up()
    done = frazil("reset", stream.name, "--to", "marker", "--yes")
    assert done.returncode == 0
    assert "It skips 50 offsets; Kafka has already deleted 50 of them" in done.stdout
    stream.catch_up()
    assert stream.ids() == [n for n in range(800) if n % 4 or not 400 <= n < 600]
    audit = _check_clean(frazil, stream)
    assert "50 offsets were skipped, by a reset, source.start or source.on-gap: 100 to 149" in audit


def test_a_recreated_topic_is_read_from_its_beginning(stream: Any, events: Any, frazil: Frazil, kafka: Any):
    stream.produce([*events(range(8)), b"broken"], partitions=4)
    stream.catch_up()
    _make_topic_again(stream, kafka)
    stream.produce([*events(range(8, 20)), b"broken"], partitions=4)
    with pytest.raises(TopicRecreated, match="frazil reset events --to marker"):
        stream.catch_up()
    assert stream.ids() == list(range(8))
    done = frazil("reset", stream.name, "--to", "marker", "--yes")
    assert done.returncode == 0
    assert "It skips no records, and reads no records again" in done.stdout
    stream.catch_up()
    assert stream.ids() == list(range(20))
    assert stream.table("_dead_letters").scan().to_arrow().num_rows == 2
    assert frazil("audit", stream.name).returncode == 0
    audited = frazil("audit", stream.name, "--source", "--json")
    found = json.loads(audited.stdout)
    assert (audited.returncode, found["complete"]) == (0, True), audited.stdout
    of_former = "of a former topic of this name and cannot be compared with Kafka"
    assert sum(f["count"] for f in found["findings"] if of_former in f["sentence"]) == 8
    total = {name: sum(p[name] for p in found["partitions"]) for name in ("rows", "distinct", "dead-letters")}
    assert total == {"rows": 20, "distinct": 20, "dead-letters": 2}
    stream.table().delete("id = 3")
    assert frazil("audit", stream.name, "--source").returncode == 1


def test_a_delete_from_a_recreated_topic_removes_a_row_of_the_former_topic(stream: Any, frazil: Frazil, kafka: Any):
    """Offsets begin again: snowflakedb/snowflake-kafka-connector#690."""
    declared = "mode: upsert\nkey: id\norder-by: at\ndelete: tombstones\n"
    stream.declare(f"{declared}commit: {{interval: 1s}}\n")

    def send(*records: tuple[int, int | None]) -> None:
        producer = Producer({"bootstrap.servers": stream.bootstrap, "max.in.flight": 1})
        for key, second in records:
            value = None if second is None else json.dumps({"id": key, "at": f"2024-01-01T00:00:{second:02d}Z"})
            producer.produce(stream.topic, value, key=json.dumps({"id": key}), partition=0)
        assert producer.flush(30) == 0
        stream.catch_up()

    send(*((key, key) for key in range(8)))
    _make_topic_again(stream, kafka)
    assert frazil("reset", stream.name, "--to", "marker", "--yes").returncode == 0
    send((5, None), (6, 40))
    assert stream.ids() == [0, 1, 2, 3, 4, 6, 7]
    # A delete that is read again, in a batch of its own, removes no later row of its topic.
    send((4, None), (4, 41), (7, None))
    stream.declare(f"{declared}commit: {{interval: 1s, max-records: 1}}\n")
    start = json.dumps({stream.topic: {"0": 2}})
    assert frazil("reset", stream.name, "--to", "offsets", "--offsets", start, "--yes").returncode == 0
    stream.catch_up()
    assert stream.ids() == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize("mode", ["", "mode: upsert\nkey: id\norder-by: at\ndelete: tombstones\n"])
def test_a_forgotten_stream_begins_again_on_a_recreated_topic(
    stream: Any, events: Any, frazil: Frazil, kafka: Any, mode: str
):
    stream.declare(f"{mode}commit: {{interval: 1s}}\n")
    stream.produce(events(range(8)))
    stream.catch_up()
    assert frazil("forget", stream.name, "--yes").returncode == 0
    _make_topic_again(stream, kafka)
    assert frazil("adopt", stream.name, "--yes").returncode == 0
    producer = Producer({"bootstrap.servers": stream.bootstrap, "max.in.flight": 1})
    if mode:
        producer.produce(stream.topic, None, key=json.dumps({"id": 7}), partition=0)
    for value in events(range(8, 12)):
        producer.produce(stream.topic, value, partition=0)
    assert producer.flush(30) == 0
    stream.catch_up()
    assert stream.ids() == ([*range(7), *range(8, 12)] if mode else list(range(12)))
    for options in ((), ("--source",)):
        audit = frazil("audit", stream.name, *options)
        assert (audit.returncode, audit.stdout.count("OFF")) == (3, 0), audit.stdout
        assert "forgotten stream's topic was recreated" in audit.stdout


@pytest.mark.parametrize("mode", ["mode: upsert\nkey: id\n", "dedupe: {key: id, within: 10s}\n"])
def test_an_audit_by_key_compares_the_records_of_a_recreated_topic(
    stream: Any, events: Any, frazil: Frazil, kafka: Any, mode: str
):
    stream.declare(f"{mode}commit: {{interval: 1s}}\n")
    stream.produce(events(range(8)))
    stream.catch_up()
    _make_topic_again(stream, kafka)
    assert frazil("reset", stream.name, "--to", "marker", "--yes").returncode == 0
    since = datetime.now(UTC).isoformat()
    stream.produce(events(range(8, 10)))
    stream.catch_up()
    audit = frazil("audit", stream.name, "--source")
    not_compared = "8 offsets are of a former topic of this name and cannot be compared with Kafka"
    counted = "dedupe" in mode
    assert audit.returncode == (0 if counted else 3), audit.stdout
    assert not_compared + (": they were checked against commit records only" if counted else ".") in audit.stdout
    assert "has not yet read" not in audit.stdout
    if not counted:  # the message has the command that compares the rest
        (command,) = re.findall(r"To compare only the commits since the reset: `frazil (.+)`", audit.stdout)
        assert frazil(*command.split()).returncode == 0
    later = frazil("audit", stream.name, "--source", "--from", since)
    assert (later.returncode, "former topic" in later.stdout) == (0, False), later.stdout
    stream.table().delete("id = 9")
    for options in ((), ("--from", since)):
        assert frazil("audit", stream.name, "--source", *options).returncode == 1


@pytest.mark.parametrize("mode", ["", "mode: upsert\nkey: id\n", "dedupe: {key: id, within: 10s}\n"])
def test_an_accepted_loss_is_a_note_in_the_audit_of_each_mode(
    stream: Any, events: Any, frazil: Frazil, kafka: Any, mode: str
):
    stream.declare(f"{mode}commit: {{interval: 1s}}\n")

    def land(start: int) -> None:
        stream.produce(events(range(start, start + 8)))
        stream.catch_up()

    land(0)
    first = stream.table().current_snapshot().snapshot_id
    land(8)
    stream.table().manage_snapshots().rollback_to_snapshot(first).commit()
    assert frazil("reset", stream.name, "--to", "marker", "--yes").returncode == 0
    land(16)
    stream.produce(events(range(24, 32)))
    assert frazil("reset", stream.name, "--to", "latest", "--yes").returncode == 0
    land(32)
    assert stream.ids() == [*range(8), *range(16, 24), *range(32, 40)]
    compares_values = "upsert" in mode
    for options in ((), ("--source",)):
        audit = frazil("audit", stream.name, *options)
        assert audit.returncode == (3 if compares_values and not options else 0), audit.stdout
        assert "16 offsets were skipped, by a reset, source.start or source.on-gap: 8 to 15, 24 to 31" in audit.stdout
    admin = kafka.admin()
    for answer in admin.delete_records([TopicPartition(stream.topic, 0, 12)]).values():
        answer.result(30)
    audit = frazil("audit", stream.name, "--source")
    by_records = "Kafka no longer has offsets before 12: 8 committed offsets were checked against commit records only"
    not_compared = "8 committed records were not compared, because Kafka no longer has the records"
    assert audit.returncode == (3 if compares_values else 0), audit.stdout
    assert (not_compared if compares_values else by_records) in audit.stdout
    stream.table().delete("id = 20")
    assert frazil("audit", stream.name, "--source").returncode == 1


@pytest.mark.parametrize("mode", ["mode: upsert\nkey: id\n", "dedupe: {key: id, within: 10s}\n"])
def test_a_loss_of_offsets_that_were_committed_twice_before_can_be_accepted(
    stream: Any, events: Any, frazil: Frazil, mode: str
):
    stream.declare(f"{mode}commit: {{interval: 1s}}\n")

    def land(start: int) -> None:
        stream.produce(events(range(start, start + 8)))
        stream.catch_up()

    def reset(*to: str) -> None:
        assert frazil("reset", stream.name, *to, "--yes").returncode == 0

    land(0)
    first = stream.table().current_snapshot().snapshot_id
    land(8)
    reset("--to", "offsets", "--offsets", json.dumps({stream.topic: {"0": 8}}))
    land(16)
    stream.table().manage_snapshots().rollback_to_snapshot(first).commit()
    reset("--to", "marker")
    land(24)
    assert stream.ids() == [*range(8), *range(24, 32)]
    audit = frazil("audit", stream.name, "--source")
    assert (audit.returncode, audit.stdout.count("OFF")) == (0, 0), audit.stdout
    reset("--to", "offsets", "--offsets", json.dumps({stream.topic: {"0": 8}}))
    stream.catch_up()
    assert stream.ids() == [*range(32)]
    stream.table().delete("id = 9")
    assert frazil("audit", stream.name, "--source").returncode == 1


def _make_topic_again(stream: Any, kafka: Any) -> None:
    admin = kafka.admin()
    admin.delete_topics([stream.topic], operation_timeout=30)[stream.topic].result(30)
    kafka.create_topic(stream.topic, 4)


def _check_clean(frazil: Frazil, stream: Any) -> str:
    done = frazil("audit", stream.name, "--source")
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_stream_that_was_forgotten_in_a_shared_table_asks_before_it_reads_everything_again(
    stream: Any, events: Any, frazil: Frazil, topic: Callable[..., str], declared_stream: Any
):
    other = declared_stream(stream.streams.parent, name="others", topic=topic(1), bootstrap=stream.bootstrap)
    declaration = other.streams / "others.yaml"
    declaration.write_text(declaration.read_text().replace("table: test.others", "table: test.events"))
    stream.produce(events(range(20)), partitions=4)
    stream.catch_up()
    other.produce(events(range(20, 30)))
    other.catch_up()

    assert frazil("forget", stream.name, "--yes").returncode == 0
    with pytest.raises(AdoptionRequired, match="frazil adopt events"):
        stream.catch_up()

    assert stream.ids() == list(range(30))
    requested = frazil("adopt", stream.name, "--yes")
    assert "It was forgotten, and its rows are still in the table" in requested.stdout
    ends = json.dumps({stream.topic: {str(p): 5 for p in range(4)}})
    assert frazil("reset", stream.name, "--to", "offsets", "--offsets", ends, "--yes").returncode == 0
    stream.produce(events(range(30, 40)), partitions=4)
    stream.catch_up()
    assert stream.ids() == list(range(40))
