"""Positions in the notation of the command line, and the losses and repeats that `frazil reset` reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from frazil.backfill.request import parse_request
from frazil.cli.options import OFFSETS, TIME
from frazil.cli.output import ask
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.reset_plan import AvailableOffsets, StateBeforeReset, list_moves
from frazil.errors import MarkerUnreadable, RolledBack, SpecError
from frazil.infer.sample import collect_statistics
from frazil.offsets.spans import SourceIdentity
from frazil.operations.stream_actions import (
    NotInKafka,
    ResetTarget,
    check_available,
    describe_consequences,
    find_target_offsets,
)
from frazil.spec.load import validate_stream
from frazil.spec.source import Source
from frazil.timetext import format_utc

SOURCE = SourceIdentity("cluster", {"t": "id-1"})
NOW = AvailableOffsets(SOURCE, {("t", 0): 10, ("t", 1): 0}, {("t", 0): 100, ("t", 1): 50})
MARKER = Marker("s", BatchKey(1, 1), None, {("t", 0): 5, ("t", 1): 40}, SOURCE)
SEEN = StateBeforeReset(MARKER, "text", MARKER.offsets, SOURCE, rolled_back=False)
NO_KAFKA: Any = None
SPEC = validate_stream(
    {
        "name": "s",
        "source": {"topics": ["t"], "bootstrap-servers": "127.0.0.1:1"},
        "table": "demo.s",
        "schema": {"id": "string not null", "ts": "timestamptz not null"},
        "event-time": "ts",
    },
    Path("s.yaml"),
)


def target(to: str, seen: StateBeforeReset = SEEN, **more: Any) -> dict[tuple[str, int], int]:
    return find_target_offsets(ResetTarget(to, **more), state=seen, available=NOW, kafka=NO_KAFKA)


def consequences(to: str, seen: StateBeforeReset = SEEN) -> str:
    plan = list_moves(target(to, seen), current=seen.held, available=NOW)
    return " ".join(describe_consequences(SPEC, plan, state=seen, available=NOW))


def test_reset_to_marker_continues_at_the_marker_or_the_first_remaining_offset():
    assert target("marker") == {("t", 0): 10, ("t", 1): 40}
    assert "skips 5 offsets; Kafka has already deleted 5 of them" in consequences("marker")


def test_reset_to_earliest_reports_repeated_offsets_and_reset_to_latest_reports_skipped_ones():
    assert "reads 40 offsets again" in consequences("earliest")
    assert "skips 105 offsets" in consequences("latest")


def test_after_a_rollback_a_reset_counts_skipped_offsets_from_the_position_of_the_table():
    back = StateBeforeReset(MARKER, "text", {("t", 0): 10, ("t", 1): 15}, SOURCE, rolled_back=True)
    assert target("table", back) == {("t", 0): 10, ("t", 1): 15}
    assert "skips no records, and reads no records again" in consequences("table", back)
    assert "skips 25 offsets" in consequences("marker", back)


def test_positions_that_depend_on_unknown_state_are_refused():
    unread = StateBeforeReset(None, "edited", {}, None, rolled_back=False, unknown="its history was expired")
    with pytest.raises(MarkerUnreadable, match="--to offsets with every partition"):
        target("marker", unread)
    with pytest.raises(MarkerUnreadable):
        target("offsets", unread, offsets={("t", 0): 20})
    with pytest.raises(RolledBack, match="its history was expired"):
        target("table", unread)
    assert target("offsets", unread, offsets={("t", 0): 20, ("t", 1): 2}) == {("t", 0): 20, ("t", 1): 2}
    assert "is unknown" in consequences("latest", unread)


def test_after_a_log_was_truncated_the_stream_continues_there_and_reads_nothing_again():
    cut = replace(NOW, end={("t", 0): 100, ("t", 1): 30}, truncated_at={("t", 1): 25})
    assert find_target_offsets(ResetTarget("marker"), state=SEEN, available=cut, kafka=NO_KAFKA)["t", 1] == 25
    plan = list_moves({("t", 0): 10, ("t", 1): 25}, current=SEEN.held, available=cut)
    text = " ".join(describe_consequences(SPEC, plan, state=SEEN, available=cut))
    assert "Kafka's log of t-1 was truncated at offset 25" in text
    assert "new records at 15 offsets whose old records are in the table" in text
    assert "again" not in text


def test_partitions_that_are_not_named_stay_at_the_marker():
    assert target("offsets", offsets={("t", 0): 20}) == {("t", 0): 20, ("t", 1): 40}


@pytest.mark.parametrize(("offset", "partition"), [(9, 0), (101, 0), (0, 7)])
def test_offsets_that_kafka_does_not_have_are_refused(offset: int, partition: int):
    with pytest.raises(NotInKafka, match="Kafka has"):
        check_available({("t", partition): offset}, NOW)


def test_options_that_do_not_belong_together_are_refused():
    for wrong in ({"to": "latest", "at": datetime.now(UTC)}, {"to": "timestamp"}, {"to": "offsets"}):
        with pytest.raises(ValueError, match="give both or neither"):
            ResetTarget(**wrong)  # type: ignore[arg-type]


def test_offsets_are_read_from_json_or_a_file_of_it(tmp_path: Path):
    file = tmp_path / "offsets.json"
    file.write_text('{"t": {"0": 12}}')
    for text in (file.read_text(), str(file)):
        assert OFFSETS.convert(text, None, None) == {("t", 0): 12}
    for text in ("nowhere.json", '{"t": 12}', '{"t": {"zero": 1}}'):
        with pytest.raises(click.BadParameter):
            OFFSETS.convert(text, None, None)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_outside_the_calendar_in_utc_is_refused(text: str):
    with pytest.raises(click.BadParameter, match="is not an ISO 8601 time"):
        TIME.convert(text, None, None)
    with pytest.raises(SpecError, match=r"from-time: .* is in UTC before the year 1 or after 9999"):
        parse_request({"stream": "ticks", "from-time": text})
    with pytest.raises(ValidationError, match="is not earliest, latest or an ISO 8601 time with a zone"):
        Source.model_validate({"bootstrap-servers": "a:1", "topics": "t", "start": text})
    collect_statistics([{"a": text}])


def test_a_time_without_a_zone_is_refused():
    assert TIME.convert("2013-12-30T00:00:00Z", None, None) == datetime(2013, 12, 30, tzinfo=UTC)
    with pytest.raises(click.BadParameter, match="has no time zone"):
        TIME.convert("2013-12-30T00:00:00", None, None)


def test_without_a_terminal_and_without_yes_nothing_is_done():
    @click.command()
    @click.option("--yes", is_flag=True)
    def operation(yes: bool) -> None:
        ask("Do it?", yes=yes)
        click.echo("done")

    refused = CliRunner().invoke(operation, input="y\n")
    assert refused.exit_code == 2
    assert "done" not in refused.output
    assert CliRunner().invoke(operation, ["--yes"]).output == "done\n"


def test_times_that_no_calendar_reaches_are_still_shown():
    assert format_utc(0) == "1970-01-01 00:00:00Z"
    assert format_utc(10**18) == f"{10**18} ms"
    assert format_utc(None) == "unknown"
