"""A take-over begins an epoch with a snapshot in both tables; from then on, only this epoch can commit."""

from __future__ import annotations

import pytest

from frazil.commit.commit_checks import (
    FORGOTTEN_PREFIX,
    continued_offsets,
    forgotten_ends,
    forgotten_epoch,
    forgotten_property,
    forgotten_reader,
    other_readers,
    other_streams,
)
from frazil.commit.marker import BatchKey, first_marker, property_name
from frazil.commit.marker_changes import adopt, forget
from frazil.errors import AdoptionRequired, Fenced, TopicRecreated
from frazil.offsets.spans import SourceIdentity


def test_the_first_take_over_writes_a_marker_with_an_empty_snapshot(world):
    committer = world.take_over()

    marker, head = world.marker(), world.load().current_snapshot()
    assert committer.epoch == 1
    assert (marker.key, marker.settled, marker.offsets) == (BatchKey(1, 0), None, world.starts)
    assert (marker.snapshot_id, marker.sequence_number) == (head.snapshot_id, head.sequence_number)
    assert head.summary["frazil.operation"] == "take-over"
    assert world.rows() == []


def test_the_first_offsets_are_requested_only_where_no_marker_stands(world):
    world.run(world.begin(), {0: (0, 3)})
    world.starts = {("events", 0): 777}

    world.begin()

    assert world.marker().offsets == {("events", 0): 3, ("events", 1): 0}


def test_the_second_take_over_fences_the_first_and_the_table_is_unchanged(world):
    first = world.begin()
    journal = world.stage(first, {0: (0, 3)})
    second = world.take_over(world.view())
    before = world.load().metadata

    with pytest.raises(Fenced, match=f"epoch {first.epoch} was replaced by epoch {second.epoch}"):
        first.commit(journal)

    assert world.load().metadata == before


def test_a_take_over_fences_the_dead_letter_table_too(world):
    first = world.begin()
    journal = world.stage(first, {0: (0, 3)}, rejected={0: [1]})
    world.take_over(world.view())
    before = world.load_dead_letters().metadata

    with pytest.raises(Fenced):
        world.commit_dead_letters(first, journal)

    assert world.load_dead_letters().metadata == before
    assert world.dead_letters() == []


def test_a_take_over_that_dies_before_the_dead_letter_table_is_completed_by_the_next(world):
    world.begin()
    world.catalog.next_fails_before(PermissionError("denied"), "demo.events_dead_letters")
    with pytest.raises(Exception, match="denied"):
        world.take_over(world.view())

    third = world.begin()

    assert (world.marker().key, world.dead_letter_marker().key) == (BatchKey(third.epoch, 0), BatchKey(third.epoch, 0))


def test_two_take_overs_at_once_get_two_epochs(world):
    """The second arrives while the first's answer is on its way."""
    rival = []
    world.catalog.next_meets(lambda: rival.append(world.take_over(world.view())), "demo.events")

    winner = world.take_over()

    assert {winner.epoch, rival[0].epoch} == {1, 2}
    assert world.marker().key.epoch == winner.epoch == 2


def test_a_take_over_with_lost_responses_succeeds(world):
    world.begin()
    world.catalog.next_answer_is_lost("demo.events")
    world.catalog.next_answer_is_lost("demo.events_dead_letters")

    committer = world.take_over()

    assert world.marker().key == (committer.epoch, 0)
    assert world.dead_letter_marker().key == (committer.epoch, 0)
    assert world.run(committer, {0: (0, 2)}).offsets["events", 0] == 2


def test_a_take_over_with_a_lost_response_that_was_overtaken_takes_the_next_epoch(world):
    world.begin()
    world.catalog.next_answer_is_lost("demo.events")
    rival = []

    original = world.time.sleep

    def sleep(seconds):
        if not rival:
            rival.append(world.take_over(world.view()))
        original(seconds)

    world.time.sleep = sleep
    world.tables = world.view()
    late = world.take_over()

    assert late.epoch > rival[0].epoch > 1


def test_a_take_over_that_lands_after_a_reported_failure_is_recognized_as_its_own(world):
    world.begin()
    world.catalog.next_lands_late("demo.events")

    committer = world.take_over()

    assert (committer.epoch, world.marker().key) == (2, (2, 0))


def test_a_writer_that_was_replaced_never_takes_over_again(world):
    first = world.begin()
    second = world.take_over(world.view())
    before = world.load().metadata

    with pytest.raises(Fenced, match=f"epoch {first.epoch} was replaced by epoch {second.epoch}"):
        world.take_over(after=first.epoch)

    assert world.load().metadata == before
    assert world.run(second, {0: (0, 2)}).key == BatchKey(second.epoch, 1)


def test_a_writer_that_is_replaced_while_it_takes_over_from_itself_is_fenced(world):
    """The writer found its own epoch; the successor takes over between that check and the swap."""
    first = world.begin()
    rival = []
    world.catalog.next_meets(lambda: rival.append(world.take_over(world.view())), "demo.events")

    with pytest.raises(Fenced, match=r"was replaced by epoch 2.*\. If no other writer runs .*`frazil resume"):
        world.take_over(after=first.epoch)

    assert world.marker().key == (rival[0].epoch, 0)


@pytest.mark.parametrize("fault", ["next_answer_is_lost", "next_lands_late"])
def test_a_writer_is_not_fenced_by_its_own_take_over_with_a_lost_or_late_response(world, fault):
    first = world.begin()
    getattr(world.catalog, fault)("demo.events")

    again = world.take_over(after=first.epoch)

    assert world.marker().key == (again.epoch, 0) == (first.epoch + 1, 0)


def test_a_stream_that_was_forgotten_is_not_begun_again_by_its_writer(world):
    with pytest.raises(Fenced, match="was forgotten"):
        world.take_over(after=1)


def test_a_table_with_foreign_rows_asks_for_adoption(world):
    world.foreign_append()

    with pytest.raises(AdoptionRequired, match="has 1 row that stream 'events' did not write"):
        world.take_over()


def test_an_empty_table_with_history_needs_no_adoption(world):
    world.foreign_append()
    world.load().delete()

    assert world.take_over().epoch == 1


def test_a_second_stream_of_the_same_table_needs_no_adoption(world, tmp_path):
    world.run(world.begin(), {0: (0, 2)})
    other = type(world)(world.catalog, tmp_path, stream="other")
    other.source = SourceIdentity("cluster-2", {"events": "topic-1"})

    other.run(other.begin(), {0: (0, 3)})
    world.run(world.begin(), {0: (2, 4)})

    assert world.marker().offsets["events", 0] == 4
    assert other.marker().offsets["events", 0] == 3
    assert len(world.rows()) == 7


def test_a_renamed_stream_asks_for_adoption_and_continues_at_its_position(world, tmp_path):
    world.run(world.begin(), {0: (0, 2)})
    renamed = type(world)(world.catalog, tmp_path, stream="renamed")

    with pytest.raises(
        AdoptionRequired, match=r"'events' has already read events into this table\. If 'events' was renamed"
    ):
        renamed.take_over()

    others = other_readers(world.load().properties, world.source, stream="renamed")
    begin = continued_offsets({("events", 0): 0, ("events", 1): 0, ("events", 2): 7}, others)
    adopt(renamed.tables, offsets=begin, source=world.source)
    renamed.run(renamed.begin(), {0: (2, 4)})
    assert renamed.marker().offsets == {
        ("events", 0): 4,
        ("events", 1): world.marker().offsets["events", 1],
        ("events", 2): 7,
    }
    assert len(world.rows()) == 4


def test_a_recreated_topic_is_refused_and_nothing_is_written(world):
    world.run(world.begin(), {0: (0, 2)})
    before = world.load().metadata
    world.source = SourceIdentity("cluster-1", {"events": "topic-2"})

    with pytest.raises(TopicRecreated, match=r"id topic-1 became topic-2.*frazil reset events --to marker"):
        world.take_over()

    assert world.load().metadata == before


def test_another_cluster_is_refused(world):
    world.begin()
    world.source = SourceIdentity("cluster-2", {"events": "topic-1"})

    with pytest.raises(TopicRecreated, match="has offsets of Kafka cluster cluster-1"):
        world.take_over()


def test_a_topic_unknown_to_the_marker_is_accepted_as_new(world):
    world.begin()
    world.source = SourceIdentity("cluster-1", {"events": "topic-1", "more": "topic-9"})

    world.begin()

    assert world.marker().source.topic_ids == {"events": "topic-1", "more": "topic-9"}


def test_a_topic_recreated_while_its_batch_was_staged_is_refused_at_the_commit(world):
    committer = world.begin()
    world.source = SourceIdentity("cluster-1", {"events": "topic-2"})
    journal = world.stage(committer, {0: (0, 2)})

    with pytest.raises(TopicRecreated):
        committer.commit(journal)

    assert world.rows() == []


def test_records_deleted_by_retention_are_skipped_once_and_named_in_the_snapshot_summary(world):
    writer = world.begin()
    world.run(writer, {0: (0, 3)})
    world.catalog.next_answer_is_lost()

    marker = writer.skip({("events", 0): 10, ("events", 1): 0}, lost="events-0 offsets 3 to 9")

    assert marker.offsets == {("events", 0): 10, ("events", 1): 0}
    assert world.marker() == marker
    lost = [s.summary["frazil.lost"] for s in world.load().snapshots() if s.summary.get("frazil.lost")]
    assert lost == ["events-0 offsets 3 to 9"]
    world.run(writer, {0: (10, 12)})
    assert world.rows() == [(0, o) for o in (0, 1, 2, 10, 11)]


def test_a_fenced_writer_cannot_skip_offsets(world):
    first = world.begin()
    world.take_over(world.view())
    before = world.load().metadata
    with pytest.raises(Fenced):
        first.skip({("events", 0): 10}, lost="events-0 offsets 0 to 9")
    assert world.load().metadata == before


def test_a_forgotten_stream_with_remaining_rows_requires_adoption_under_any_name(world, tmp_path):
    """Its rows are still there: it would read all of them a second time."""
    world.run(world.begin(), {0: (0, 2)})
    other = type(world)(world.catalog, tmp_path, stream="other")
    other.source = SourceIdentity("cluster-2", {"events": "topic-1"})
    other.run(other.begin(), {0: (0, 3)})
    renamed = type(world)(world.catalog, tmp_path, stream="renamed")

    forget(world.tables, state=world.tables.state)

    for again in (world, renamed):
        with pytest.raises(AdoptionRequired, match="'events' was forgotten, but its rows are still in table"):
            again.take_over()
    other.run(other.begin(), {0: (3, 5)})
    third = type(world)(world.catalog, tmp_path, stream="third")
    third.source = SourceIdentity("cluster-2", {"more": "topic-9"})
    third.begin()
    adopt(world.tables, offsets={("events", 0): 2}, source=world.source)
    world.run(world.begin(), {0: (2, 4)})
    assert len(world.rows()) == 9


def test_no_epoch_is_reused_if_only_the_note_of_a_forgotten_stream_records_it(world):
    """A paused writer of the first would be taken for the second, and sweep away what that one has committed."""
    paused = world.begin()
    forget(world.tables, state=world.tables.state)
    for table in (world.load(), world.load_dead_letters()):
        gone = [s.snapshot_id for s in table.snapshots() if s != table.current_snapshot()]
        table.maintenance.expire_snapshots().by_ids(gone).commit()
    world.tables = world.view()

    assert world.begin().epoch == paused.epoch + 1
    with pytest.raises(Fenced):
        world.run(paused, {0: (0, 2)})


def test_a_forgotten_stream_starts_without_adoption_if_no_row_remains(world, tmp_path):
    world.run(world.begin(), {0: (0, 2)})
    other = type(world)(world.catalog, tmp_path, stream="other")
    other.source = SourceIdentity("cluster-2", {"events": "topic-1"})
    other.begin()
    forget(world.tables, state=world.tables.state)
    world.load().delete()

    assert world.take_over().epoch == 2


def test_a_stream_forgotten_twice_still_counts_as_reader_of_its_earlier_topics():
    first, second = SourceIdentity("cluster", {"a": "id-a"}), SourceIdentity("cluster", {"b": "id-b"})
    properties: dict[str, str] = {}
    for epoch, source in ((3, first), (7, second)):
        marker = first_marker("events", epoch=epoch, offsets={(t, 0): 0 for t in source.topic_ids}, source=source)
        properties |= forgotten_property({**properties, marker.property_name: marker.to_property()}, "events")

    assert forgotten_reader(properties, first, stream="another") == "events"
    assert forgotten_reader(properties, second, stream="another") == "events"
    unreadable = forgotten_property({**properties, marker.property_name: "edited by hand"}, "events")
    assert unreadable == {name: text for name, text in properties.items() if "forgotten" in name}


def test_other_streams_of_a_table_are_those_with_a_marker_and_forgotten_ones():
    properties = [property_name("events"), property_name("orders"), f"{FORGOTTEN_PREFIX}visits", "owner"]
    assert other_streams(dict.fromkeys(properties, ""), stream="events") == {"orders", "visits"}


def test_offsets_of_a_former_topic_are_those_that_forgotten_streams_have_read():
    topics = [SourceIdentity("cluster", {"a": f"id-a{n}", "b": "id-b"}) for n in range(3)]
    assert forgotten_epoch(forgotten_property({}, "events"), "events") == 0
    notes: dict[str, str] = {}
    for source, end in ((topics[0], 7), (topics[1], 2)):
        marker = first_marker("events", epoch=1, offsets={("a", 0): end, ("b", 0): 5}, source=source)
        notes = forgotten_property({**notes, marker.property_name: marker.to_property()}, "events")
        assert forgotten_ends(notes, source) == {}
        assert forgotten_ends(notes, topics[2]) == {("a", 0): 7}
    assert forgotten_ends(notes, SourceIdentity("another", {"b": "id-b"})) == {("b", 0): 5}
    assert forgotten_ends({"owner": next(iter(notes.values()))}, topics[2]) == {}


def test_a_stream_forgotten_on_two_clusters_counts_as_reader_of_the_topics_of_both():
    sources = [SourceIdentity(f"cluster-{n}", {"a": f"id-{n}"}) for n in (1, 2, 1)]
    properties: dict[str, str] = {}
    for epoch, source in enumerate(sources, 1):
        marker = first_marker("events", epoch=epoch, offsets={("a", 0): 0}, source=source)
        properties |= forgotten_property({**properties, marker.property_name: marker.to_property()}, "events")
        for seen in sources[:epoch]:
            assert forgotten_reader(properties, seen, stream="another") == "events"
    assert forgotten_reader(properties, SourceIdentity("cluster-3", {"a": "id-1"}), stream="another") is None
