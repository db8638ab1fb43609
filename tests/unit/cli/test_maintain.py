"""What `frazil maintain --dry-run` reports about a table, without a JVM."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from frazil.cli.main import frazil
from frazil.cli.maintain import find_first_cause
from frazil.errors import EnvironmentUnusable, SpecError, WriterBusy
from frazil.host.process_log import log_to_file
from frazil.spec.load import load_stream
from tests.made_batches import MadeStream

Command = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path, frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> Command:  # noqa: ARG001
    """The command on a folder with one stream."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ticks.yaml").write_text(
        "name: ticks\n"
        "source: {topics: [ticks], format: json, bootstrap-servers: '127.0.0.1:1'}\n"
        "table: demo.ticks\n"
        "schema: {at: timestamptz}\n"
        "event-time: at\n"
        "maintenance: {compaction: {open-files: 3}, manifests: off, expiry: {at-least: 1, keep: 1ms}}\n"
    )
    return lambda *options: CliRunner().invoke(
        frazil, ["maintain", "demo.ticks", "--streams", str(tmp_path), "--dry-run", *options]
    )


def test_a_dry_run_reports_what_each_action_would_do_and_why_and_changes_nothing(command: Command, tmp_path: Path):
    stream = MadeStream(load_stream(tmp_path / "ticks.yaml"), now_ms=0, partitions=1)
    for batch in range(3):
        stream.land({0: (batch, batch + 1)})
    said = command()
    assert said.exit_code == 0, said.output
    assert "compaction: a rewrite of 3 data files (" in said.output
    assert "it is still being written: 3 small files become 1" in said.output
    assert "manifests: 3 manifests are fewer than 100\n" in said.output
    assert "manifests is switched off" in said.output
    assert "snapshots expire. Kept: the newest 1 of branch main, by maintenance.expiry" in said.output
    assert len(stream.tables.main.refresh().metadata.snapshots) == 4
    found = json.loads(command("--json", "--actions", "expiry").stdout)
    assert list(found) == ["expiry"]
    assert len(found["expiry"]["expire"]) >= 2


@pytest.mark.parametrize("value", ["0", "-1", "8MiB", "", "9" * 30])
def test_sizes_of_a_table_that_are_not_positive_integers_are_ignored_with_a_warning(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture, value: str
):
    stream = MadeStream(load_stream(tmp_path / "ticks.yaml"), now_ms=0, partitions=1)
    sizes = ("write.target-file-size-bytes", "commit.manifest.target-size-bytes")
    with stream.tables.main.current().transaction() as change:
        change.set_properties(dict.fromkeys(sizes, value))  # as another engine may
    stream.tables.main.refresh()
    for batch in range(3):
        stream.land({0: (batch, batch + 1)})
    done = command("--actions", "compaction,manifests")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "compaction: a rewrite of 3 data files (" in done.output
    assert "manifests: 3 manifests are fewer than 100\n" in done.output
    for name, size in zip(sizes, (536_870_912, 8_388_608), strict=True):
        warning = (
            f"table demo.ticks: property {name}: {value!r} is not an integer from 1 to 9,223,372,036,854,775,807, so "
            f"frazil uses {size:,}. Set or remove the property"
        )
        assert caplog.messages.count(warning) == 1


def test_maintaining_a_table_that_does_not_exist_yet_is_an_error(command: Command):
    assert isinstance(command().exception, SpecError)
    assert command("--actions", "everything").exit_code == 2


def test_a_template_is_named_among_the_tables_and_its_tables_come_with_their_records(
    command: Command,  # noqa: ARG001 - it declares the stream
    tmp_path: Path,
):
    with (tmp_path / "ticks.yaml").open("a") as file:
        file.write("route: {by: topic, template: 'demo.of_{value}'}\n")
    arguments = ["--streams", str(tmp_path), "--dry-run"]
    unknown = CliRunner().invoke(frazil, ["maintain", "demo.nothing", *arguments])
    assert str(unknown.exception).endswith("demo.ticks_dead_letters, demo.of_{value}")
    absent = CliRunner().invoke(frazil, ["maintain", "demo.of_a", *arguments])
    assert str(absent.exception) == (
        "the table demo.of_a does not exist yet: the first record of its route value creates it"
    )


def test_no_jvm_starts_only_to_report_that_nothing_is_to_be_done(
    command: Command,  # noqa: ARG001 - it declares the stream
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    stream = MadeStream(load_stream(tmp_path / "ticks.yaml"), now_ms=0, partitions=1)
    stream.land({0: (0, 1)})
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java"))
    monkeypatch.setenv("PATH", str(tmp_path / "no java"))
    done = CliRunner().invoke(frazil, ["maintain", "demo.ticks", "--streams", str(tmp_path), "--actions", "manifests"])
    assert done.exit_code == 0, done.output
    assert "skipped" in done.output
    done = CliRunner().invoke(frazil, ["maintain", "demo.ticks", "--streams", str(tmp_path), "--actions", "compaction"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "skipped" in done.output
    stream.land({0: (1, 2)})
    stream.land({0: (2, 3)})
    done = CliRunner().invoke(frazil, ["maintain", "demo.ticks", "--streams", str(tmp_path), "--actions", "compaction"])
    assert isinstance(done.exception, EnvironmentUnusable), "and one is needed once there is something to do"


def test_an_error_is_reported_in_a_sentence_and_its_traceback_is_in_the_log(
    command: Command,  # noqa: ARG001 - it declares the stream
    tmp_path: Path,
    frazil_home: Path,
):
    """The command runs in its own process, because pytest has handlers for the log."""
    stream = MadeStream(load_stream(tmp_path / "ticks.yaml"), now_ms=0, partitions=1)
    for batch in range(3):
        stream.land({0: (batch, batch + 1)})
    snapshot = stream.tables.main.refresh().current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    done = subprocess.run(
        [sys.executable, "-m", "frazil", "maintain", "demo.ticks", "--streams", tmp_path, "--actions", "compaction"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    log = frazil_home / "maintain" / "demo.ticks.log"
    assert done.returncode == 1, done.stderr
    assert "demo.ticks: compaction failed: FileNotFoundError" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.splitlines() == [f"The log has the details: {log}"]
    assert "Traceback" in log.read_text()


def test_a_second_run_on_the_same_table_is_refused_and_keeps_the_log_of_the_first(
    command: Command,  # noqa: ARG001 - it declares the stream
    tmp_path: Path,
    frazil_home: Path,
):
    MadeStream(load_stream(tmp_path / "ticks.yaml"), now_ms=0, partitions=1).land({0: (0, 1)})
    log = frazil_home / "maintain" / "demo.ticks.log"
    log.parent.mkdir()
    maintain = ["maintain", "demo.ticks", "--streams", str(tmp_path), "--actions", "manifests"]
    with log_to_file(log):
        logging.getLogger("frazil").warning("the first run")
        second = CliRunner().invoke(frazil, maintain)
        assert isinstance(second.exception, WriterBusy), second.output
        assert str(second.exception) == f"the same command is running, and logs to {log}. Wait until it ends"
        assert "the first run" in log.read_text()
    assert CliRunner().invoke(frazil, maintain).exit_code == 0
    assert "the first run" not in log.read_text()


def test_the_first_error_in_the_log_is_reported_by_its_root_cause():
    log = (
        "WARN RewriteDataFiles: failed\norg.apache.spark.SparkException: aborted\n\tat a.B.c(B.java:1)\n"
        "Caused by: java.lang.RuntimeException: read\n\tat d.E.f(E.java:2)\n\t... 3 more\n"
        "Caused by: java.io.IOException: no space.\n\tat g.H.i(H.java:3)\nWARN another\n"
        "java.lang.Error: later\n\tat j.K.l(K.java:4)\nCaused by: java.lang.Error: of later\n"
    )
    assert find_first_cause(log) == "java.io.IOException: no space"
    assert find_first_cause("WARN nothing\n") is None
    alone = "WARN Reader: failed\njava.lang.RuntimeException: corrupted file: -5\n\tat a.B.c(B.java:1)\nWARN on\n"
    assert find_first_cause(alone) == "java.lang.RuntimeException: corrupted file: -5", "an error without a cause"
