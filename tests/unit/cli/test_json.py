"""`--json`: every command has it, and then prints nothing else to standard output."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from frazil.cli.foreground import RunTotals, Terminal, WriterPipe, batch_document
from frazil.cli.main import COMMANDS, frazil, main
from frazil.cli.output import progress
from frazil.commit.marker import BatchKey, Marker
from frazil.events import BatchCommitted
from frazil.ingest.sealing import Sealer
from frazil.offsets.spans import SourceIdentity
from frazil.spec.load import find_stream, load_stream
from tests.made_batches import MadeStream

NOW_MS = 2_000_000_000_000
PRINTS_A_SCRIPT = {"completion"}


@pytest.fixture
def streams(tmp_path: Path, frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    """Two streams that hide the column `card`: `made` has a table; the other was never started."""
    monkeypatch.setenv("SECRET", "s" * 32)
    folder = tmp_path / "streams"
    folder.mkdir()
    for name in ("made", "young"):
        spec = {
            "name": name,
            "source": {"topics": [name], "bootstrap-servers": "127.0.0.1:1"},
            "table": f"demo.{name}",
            "schema": {"at": "timestamptz", "card": "string", "note": "string"},
            "event-time": "at",
            "sensitive": {"secret": "${env:SECRET}", "fields": {"card": "tokenize"}},
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    MadeStream(load_stream(folder / "made.yaml"), NOW_MS, partitions=1).land({0: (0, 25)})
    return folder


def reported(streams: Path, *words: str) -> Any:
    done = CliRunner().invoke(frazil, [*words, "--json", "--streams", str(streams)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, (*path, name))


def test_every_command_except_completion_has_a_json_option() -> None:
    found = dict(leaves(frazil))
    assert {path[0] for path in found} == COMMANDS.keys()
    without = {" ".join(path) for path, command in found.items() if not any("--json" in p.opts for p in command.params)}
    assert without == PRINTS_A_SCRIPT


def test_a_requested_pause_resume_or_restart_is_reported_as_json(streams: Path) -> None:
    paused = reported(streams, "pause", "made", "--reason", "upgrade")["streams"]["made"]
    assert paused["on-every-host"]
    assert (paused["desired"]["mode"], paused["desired"]["reason"]) == ("paused", "upgrade")
    assert reported(streams, "resume", "made")["streams"]["made"]["desired"]["mode"] == "running"
    young = reported(streams, "restart", "young")["streams"]["young"]
    assert not young["on-every-host"], "it has no table yet"


def test_evolve_adopt_and_forget_report_their_changes_as_json(streams: Path) -> None:
    evolved = reported(streams, "evolve", "made", "--rename", "note=remark", "--yes")
    assert evolved == {"stream": "made", "table": "demo.made", "renamed": {"note": "remark"}, "dropped": []}
    assert reported(streams, "adopt", "made") == {"stream": "made", "adopted": False}
    forgotten = reported(streams, "forget", "made", "--yes")
    assert forgotten["removed-objects"] > 0
    assert reported(streams, "forget", "young", "--yes")["removed-objects"] == 0


def test_frazil_reveal_prints_the_text_of_each_token(streams: Path) -> None:
    declared = find_stream(streams, "made").sensitive
    assert declared is not None
    assert declared.secret is not None
    token = Sealer.of(declared.secret, os.environ).tokenize("4711")
    assert reported(streams, "reveal", "made", token) == {"stream": "made", "texts": {token: "4711"}}


def test_the_json_output_of_a_catalog_configuration_is_one_string() -> None:
    done = CliRunner().invoke(frazil, ["catalog", "--for", "duckdb", "--json"], catch_exceptions=False)
    document = json.loads(done.stdout)
    assert document["for"] == "duckdb"
    assert "duckdb" in document["configuration"]


def test_an_error_is_printed_as_json_and_as_a_sentence(
    streams: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["frazil", "status", "nobody", "--json", "--streams", str(streams)])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["exit-code"] == end.value.code
    assert err == f"{error['type']}: {error['message']}\n"
    assert "nobody" in error["message"]


def test_a_run_reports_each_batch_and_its_end_as_json(
    streams: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = BatchCommitted(
        BatchKey(3, 7), Marker("made", BatchKey(3, 7), None, {}, SourceIdentity("c", {}), {}),
        records=2, rejected=1, files=1, stage_s=1.0, commit_s=0.25, bytes=900,
    )  # fmt: skip
    totals = RunTotals(load_stream(streams / "made.yaml"))
    read_end, write_end = os.pipe()
    voice = WriterPipe(write_end)
    voice.say(totals.add(batch))
    voice.report(batch_document(batch))
    voice.report(totals.document(is_stopped=False))
    os.close(write_end)
    terminal = Terminal(tmp_path, as_json=True)
    terminal.listen(read_end, writer=1)
    terminal.close()
    os.close(read_end)
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [
        {"batch": "3-7", "records": 2, "rejected": 1, "files": 1, "bytes": 900, "stage-s": 1.0, "commit-s": 0.25},
        {"ended": "caught-up", "records": 2, "rejected": 1},
    ]
    assert err.startswith("batch 3-7: 2 rows")


def test_progress_is_shown_only_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for terminal in (False, True):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda terminal=terminal: terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with progress("reading Kafka") as step:
            step(1, 2, "1 of 2 chunks")
        shown[terminal] = stream.getvalue()
    assert shown[False] == ""
    assert "1 of 2 chunks" in shown[True]
