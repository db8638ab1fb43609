"""`frazil health`: a line for every table, one table in full, and a sentence for each exceeded threshold."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from frazil.cli import health as cli_health
from frazil.cli.main import frazil
from frazil.errors import CommitUnavailable, Failure, SpecError
from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.host.lock import WriterLock
from frazil.host.records import ExitRecord, Launch, LaunchKind, ProcessMark, append_exit
from frazil.host.supervising_run import confirm_given_up
from frazil.maintenance import measure
from frazil.maintenance.alerts import Reading
from frazil.maintenance.tables import TableKind
from frazil.spec.load import load_stream
from frazil.table import catalogs
from tests.made_batches import MadeStream
from tests.silent_server import silent_server
from tests.unit.maintenance.day_by_day import YAML, land, made_stream

ALERTS = "maintenance: {expiry: off, alerts: {snapshots: 3}}\n"


@pytest.fixture
def made(tmp_path: Path, frazil_home: Path) -> MadeStream:  # noqa: ARG001
    stream = made_stream(tmp_path)
    land(stream, 3)
    return stream


def call(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(frazil, ["health", *arguments, "--streams", str(folder)])


def test_health_of_a_stream_name_is_answered_with_the_name_of_its_table(made: MadeStream, tmp_path: Path) -> None:
    assert str(call(tmp_path, made.spec.name).exception) == "made is a stream; its table is demo.made"


def tables(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = call(folder, "--json", *arguments)
    assert done.exit_code == 0, done.output
    return list(json.loads(done.stdout)["tables"])


def test_every_table_is_listed_even_if_it_does_not_exist_yet(made: MadeStream, tmp_path: Path):  # noqa: ARG001
    lines = call(tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["table", "demo.made", "demo.made_dead_letters", "frazil.signals"]
    assert lines[1].rstrip().endswith("ok")
    assert lines[3].rstrip().endswith("no table yet")


def test_at_80_columns_no_name_of_a_table_is_broken(made: MadeStream, tmp_path: Path):  # noqa: ARG001
    declared = (tmp_path / "made.yaml").read_text()
    long = "dead-letters: {table: demo.rejected_of_a_stream_with_a_long_name}\n"
    (tmp_path / "made.yaml").write_text(declared + long)
    environment = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "80"}
    lines = CliRunner().invoke(frazil, ["health", "--streams", str(tmp_path)], env=environment).stdout.splitlines()
    assert "demo.rejected_of_a_stream_with_a_long_name" in [line.split()[0] for line in lines if line.strip()]
    assert all(len(line) <= 80 for line in lines[:4])


def test_the_health_of_one_table_has_its_numbers_and_ratios(made: MadeStream, tmp_path: Path):
    (found,) = tables(tmp_path, "demo.made")
    size = sum(f["file_size_in_bytes"] for f in made.tables.main.refresh().inspect.files().to_pylist())
    assert (found["kind"], found["health"]["data-files"], found["health"]["data-bytes"]) == ("main", 6, size)
    assert found["ratios"]["manifests-per-file"] == 0.5
    assert (found["beyond"], found["health"]["partitions"]) == ([], None)
    shown = call(tmp_path, "demo.made").stdout
    assert "data files     6, 1.3 KiB on average (target 4.0 KiB)" in shown
    assert "compacted      never in its history; not compacted: 6 files of" in shown
    assert "at_day=" not in shown
    assert "format version" not in shown


def test_health_of_a_table_of_format_version_3_shows_the_version(tmp_path: Path, frazil_home: Path):  # noqa: ARG001
    (tmp_path / "made.yaml").write_text(YAML.replace('"4096"', '"4096", format-version: 3'))
    assert MadeStream(load_stream(tmp_path / "made.yaml"), 0).tables.main.current().metadata.format_version == 3
    assert "format version  3" in call(tmp_path, "demo.made").stdout


def test_the_health_of_one_table_has_the_lag_that_no_writer_reports(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measure, "kafka_lag", lambda *_: 48_000)
    assert f"stream {made.spec.name}" in call(tmp_path, "demo.made").stdout
    assert "lag 48,000, last commit" in call(tmp_path, "demo.made").stdout
    monkeypatch.setattr(measure, "kafka_lag", lambda *_: "the brokers do not respond.")
    assert "lag unknown (the brokers do not respond)" in call(tmp_path, "demo.made").stdout
    monkeypatch.setattr(measure, "kafka_lag", lambda *_: pytest.fail("the list shows no lag"))
    assert call(tmp_path).exit_code == 0


def test_health_deep_shows_the_worst_partitions_first(made: MadeStream, tmp_path: Path):
    land(made, 1, rows=1)
    lines = [line for line in call(tmp_path, "demo.made", "--deep").stdout.splitlines() if "at_day=" in line]
    assert [line.split()[:3] for line in lines] == [["at_day=2013-12-30", "4", "4"], ["at_day=2013-12-31", "3", "3"]]
    (found,) = tables(tmp_path, "demo.made", "--deep")
    assert [p["path"] for p in found["health"]["partitions"]] == ["at_day=2013-12-30", "at_day=2013-12-31"]


def test_a_long_list_of_partitions_is_shortened_with_a_note(made: MadeStream, tmp_path: Path):
    land(made, 1, rows=25)
    shown = call(tmp_path, "demo.made", "--deep").stdout
    assert shown.count("at_day=") == 20
    assert "and 5 partitions more" in shown


def test_a_value_beyond_a_threshold_is_a_sentence_and_not_an_error(made: MadeStream, tmp_path: Path):  # noqa: ARG001
    (tmp_path / "made.yaml").write_text(YAML + ALERTS)
    done = call(tmp_path)
    assert done.exit_code == 0
    assert "demo.made has 4 snapshots" in done.stdout
    assert "`maintenance.expiry` is off for this table" in done.stdout
    assert [r["rule"] for r in tables(tmp_path)[0]["beyond"]] == ["snapshots"]


def test_an_unknown_table_is_an_error_that_names_the_known_ones(made: MadeStream, tmp_path: Path):  # noqa: ARG001
    done = call(tmp_path, "demo.mad")
    assert isinstance(done.exception, SpecError)
    assert "Maintained tables: demo.made, demo.made_dead_letters, frazil.signals" in str(done.exception)


def test_an_unreachable_catalog_is_an_error_but_hides_no_other_table(
    made: MadeStream,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", "http://127.0.0.1:9")
    away = YAML.replace("identifier: demo.made", "catalog: away, identifier: demo.away")
    (tmp_path / "away.yaml").write_text(away.replace("name: made", "name: away"))
    done = call(tmp_path, "--json")
    assert done.exit_code == 1, "a table that was not measured is not healthy"
    found = {t["table"]: t for t in json.loads(done.stdout)["tables"] if t["kind"] == "main"}
    assert "cannot be reached" in found["demo.away"]["problem"]
    assert found["demo.made"]["health"]["data-files"] == 6
    assert isinstance(call(tmp_path, "demo.away").exception, CommitUnavailable)


def test_a_catalog_out_of_reach_is_one_cause_with_its_tables_and_no_stall_of_a_writer(
    tmp_path: Path,
    frazil_home: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", "http://127.0.0.1:9")
    for name in ("first", "second", "third"):
        table = YAML.replace("identifier: demo.made", f"catalog: away, identifier: demo.{name}")
        (tmp_path / f"{name}.yaml").write_text(table.replace("name: made", f"name: {name}"))
    shown = call(tmp_path).stdout
    (cause,) = (line for line in shown.splitlines() if "cannot be reached" in line)
    assert cause.startswith("demo.first, demo.first_dead_letters, demo.second and ")
    assert shown.splitlines()[-1].startswith("  → Start the catalog and its storage, make them reachable")
    assert "stall" not in shown
    document = json.loads(call(tmp_path, "--json").stdout)
    assert {reading["rule"] for stream in document["streams"] for reading in stream["beyond"]} == {"unmeasured"}
    remedy = shown.splitlines()[-1].removeprefix("  → ")
    assert all(table["problem"].endswith(f". {remedy}") for table in document["tables"])


def test_a_catalog_that_answers_nothing_is_one_cause_of_health_and_cost(
    made: MadeStream,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogs, "ANSWER_TIMEOUT_S", 3.0)
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__TYPE", "rest")
    for name in ("first", "second", "third"):
        table = YAML.replace("identifier: demo.made", f"catalog: away, identifier: demo.{name}")
        (tmp_path / f"{name}.yaml").write_text(table.replace("name: made", f"name: {name}"))
    with silent_server() as server:
        monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", f"http://127.0.0.1:{server.port}")
        shown = call(tmp_path).stdout
        ends = [call(tmp_path, "demo.first"), CliRunner().invoke(frazil, ["cost", "--streams", str(tmp_path)])]
    cause = "the catalog 'away' does not answer"
    assert shown.count(cause) == 1
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("demo.made ")] == ["6"]
    assert [(type(end.exception), cause in str(end.exception)) for end in ends] == [(CommitUnavailable, True)] * 2


@pytest.mark.parametrize(("count", "lines"), [(3, 3), (300, 2)])
def test_equal_findings_of_many_tables_of_a_route_are_one_line(
    capsys: pytest.CaptureFixture[str], count: int, lines: int
) -> None:
    found = [cli_health.TableReport("shop.orders", TableKind.MAIN)]
    for number in range(count):
        name = f"shop.t{number:03}"
        files = 90 if number == 2 else 9
        small = Reading("small-files", files, 3, f"{files} files", f"{name} has {files} files: compact it")
        found.append(cli_health.TableReport(name, TableKind.ROUTED, problem=Failure("no answer"), beyond=(small,)))
    found.append(cli_health.TableReport("shop.t999", TableKind.ROUTED, problem=Failure("denied")))
    cli_health._print_tables(found, {}, in_full=False)
    said = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in said if line.rstrip().endswith("unknown")]
    assert listed == [report.table for report in found[1:21]]
    assert (f"and {count - 19} more tables of routes; --json has all" in said) is (count > 20)
    causes = [line for line in said if line.endswith((": no answer", ": denied"))]
    assert causes[1:] == ["shop.t999: denied"]
    findings = said[said.index(causes[-1]) + 1 :]
    worst = "shop.t002 has 90 files: compact it" if count > 3 else "shop.t000 has 9 files: compact it"
    assert (len(findings), findings[0]) == (lines, worst)
    names = "shop.t000, shop.t001, shop.t003, and 296 more tables"
    assert (findings[1] == f"  → small-files: the same for 299 other tables: {names}") is (count > 3)


def test_an_unreadable_declaration_is_one_error_among_others(made: MadeStream, tmp_path: Path):  # noqa: ARG001
    (tmp_path / "broken.yaml").write_text("name: [")
    done = call(tmp_path)
    assert (done.exit_code, "demo.made" in done.stdout, "broken.yaml" in done.stderr) == (10, True, True)


def test_a_repeatedly_crashing_writer_is_reported_for_its_stream(made: MadeStream, tmp_path: Path, frazil_home: Path):
    assert json.loads(call(tmp_path, "--json").stdout)["streams"][0]["beyond"] == []
    folder, now_ms = frazil_home / "streams" / made.spec.name, time.time_ns() // 1_000_000
    folder.mkdir(parents=True, exist_ok=True)
    ends = [
        ExitRecord(
            f"l{n}", 20, now_ms, now_ms, made.spec.fingerprint(), 0, committed=False, error="StaleBatch: no plan"
        )
        for n in range(4)
    ]
    for end in ends:
        append_exit(folder, end)
    launch = Launch("l3", LaunchKind.SUPERVISED, now_ms, writer=ProcessMark(2**22 + 1, 0))
    (folder / "lock").write_text(json.dumps(dataclasses.asdict(launch)))
    said = call(tmp_path).stdout
    assert "ended 4 times in a row without a commit" in said
    assert said.splitlines()[1].rstrip().endswith("restarts:made")


def test_a_stalled_writer_is_reported_at_once_with_the_cause(tmp_path: Path, frazil_home: Path):
    (tmp_path / "made.yaml").write_text(YAML)
    folder = frazil_home / "streams" / "made"
    with WriterLock(folder):
        now_ms = time.time_ns() // 1_000_000  # not before the launch: that would be an earlier writer's heartbeat
        stall = Stall(StallKind.WATERMARK, now_ms, "made-3", "made-3 holds the watermark back: check its producers")
        Heartbeat("made", os.getpid(), "f", Phase.WAITING, now_ms, now_ms, stall=stall).write(folder)
        said, found = call(tmp_path).stdout, json.loads(call(tmp_path, "--json").stdout)
    assert said.splitlines()[1].rstrip().endswith("no table yet, stall:made")
    assert f"the writer of stream made is stalled: {stall.reason}" in said
    (stream,) = found["streams"]
    assert (stream["state"]["stall"]["held-back-by"], stream["state"]["stall"]["since-ms"]) == ("made-3", now_ms)
    assert "stall" not in call(tmp_path).stdout, "it has ended"


def test_a_given_up_writer_is_reported_at_once_by_health_and_status(tmp_path: Path, frazil_home: Path):
    (tmp_path / "made.yaml").write_text(YAML)
    folder, now_ms = frazil_home / "streams" / "made", time.time_ns() // 1_000_000
    folder.mkdir(parents=True)
    declared = load_stream(tmp_path / "made.yaml").fingerprint()
    end = ExitRecord("l3", 12, now_ms, now_ms, declared, 0, committed=False, error="RolledBack: it went back")
    append_exit(folder, end)
    (folder / "lock").write_text(json.dumps(dataclasses.asdict(Launch("l3", LaunchKind.SUPERVISED, now_ms))))
    confirm_given_up("made", "l3", reason="it broke", table_fingerprint=None)
    said = call(tmp_path).stdout
    assert said.splitlines()[1].rstrip().endswith("no table yet, writer:made")
    assert "its supervisor gave up: it broke" in said
    people = CliRunner().invoke(frazil, ["status", "--streams", str(tmp_path)]).stdout
    assert "made: the supervisor gave up " in people
    assert "`frazil resume made` starts the writer" in people
