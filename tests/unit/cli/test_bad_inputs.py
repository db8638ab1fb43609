"""Commands answer invalid arguments with a sentence and their exit code, never with a traceback."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.cli.main import main
from frazil.commit import open_streams
from frazil.errors import AdoptionRequired, KafkaUnavailable
from frazil.home import run_folder
from frazil.host.lock import WriterLock
from frazil.kafka.admin import INTERACTIVE_TIMEOUT_S, KafkaAdmin
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table
from tests.made_batches import MadeStream

VALID = """
name: rides
source: {topics: rides, bootstrap-servers: "127.0.0.1:1"}
table: city.rides
schema: {id: long not null, at: timestamptz}
event-time: at
complete: hour
"""

COMMANDS = [
    "validate",
    "status",
    "status rides",
    "health",
    "health city.rides",
    "audit rides",
    "partitions city.rides",
    "maintain city.rides --dry-run",
    "orphans city.rides",
    "reset rides --to earliest --yes",
    "adopt rides --yes",
    "forget rides --yes",
    "backfill rides --dry-run",
    "pause rides",
]
OF_A_STREAM = [c for c in COMMANDS if " rides" in c]
WITH_A_CATALOG = [c for c in COMMANDS if c != "validate"]


@pytest.fixture
def streams(tmp_path: Path, frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    folder = tmp_path / "streams"
    folder.mkdir()
    (folder / "rides.yaml").write_text(VALID)
    for variable in [name for name in os.environ if name.upper().startswith("PYICEBERG")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return folder


Run = Callable[[str, Path], tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command as a shell does. Return its exit code and output."""

    def call(command: str, folder: Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["frazil", *command.split(), "--streams", str(folder)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return int(end.value.code or 0), said.out + said.err

    return call


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x02binary", "rides.yaml: line 1: is not UTF-8 text"),
        (b"name: rides\n\x00", "rides.yaml: line 2: contains the control character 0x00"),
        (b"name: rides\n" + b"x" * 5_000_000, "5,000,012 bytes"),
        (b"[" * 50_000, "nested more than"),
        (
            b"name: rides\nsource: http://x\ntable: 5\nschema: no\nevent-time: {}\n",
            "source: 'http://x' is not a mapping",
        ),
        (b"", "declares nothing"),
    ],
    ids=["binary", "nul", "huge", "deep", "wrong", "empty"],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_unusable_file_is_reported_by_name(
    run: Run, streams: Path, command: str, content: bytes, words: str
) -> None:
    (streams / "rides.yaml").write_bytes(content)
    code, said = run(command, streams)
    assert code == 10
    assert words in said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_without_streams_is_reported(run: Run, streams: Path, tmp_path: Path, command: str) -> None:
    (streams / "rides.yaml").unlink()
    code, said = run(command, streams)
    assert code == 10
    assert str(streams) in said
    code, _ = run(command, tmp_path / "nowhere")
    assert code == 10


def test_an_audit_before_the_first_records_reports_only_that(run: Run, streams: Path) -> None:
    ensure_table(load_catalog(None), load_stream(streams / "rides.yaml"))
    code, said = run("audit rides", streams)
    assert code == AdoptionRequired.exit_code
    assert "nothing is committed yet" in said
    assert "AdoptionRequired" not in said


@pytest.mark.parametrize(
    "command", ["audit rides --source", "backfill rides --dry-run", "reset rides --to earliest --yes"]
)
def test_brokers_that_are_down_are_waited_for_briefly(
    run: Run, streams: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    class Hurried(KafkaAdmin):
        def __init__(self, *arguments: Any, timeout_s: float, **others: Any) -> None:
            waits_s.append(timeout_s)
            super().__init__(*arguments, timeout_s=timeout_s / 50, **others)

    monkeypatch.setattr(open_streams, "KafkaAdmin", Hurried)
    MadeStream(load_stream(streams / "rides.yaml"), 1_800_000_000_000, partitions=1).begin()
    code, said = run(command, streams)
    assert (code, waits_s) == (KafkaUnavailable.exit_code, [INTERACTIVE_TIMEOUT_S])
    # librdkafka may have tried to connect by then, and its error is added.
    assert re.fullmatch(
        r"KafkaUnavailable: Kafka at 127\.0\.0\.1:1 did not answer within 0\.1 s(; the "
        r"last error was: .*)?\. Start the brokers, make them reachable from this host, or correct "
        r"source\.bootstrap-servers\n",
        said,
    )


def test_a_stream_whose_file_broke_can_be_paused_and_its_table_is_shown(run: Run, streams: Path) -> None:
    run("status", streams)
    (streams / "rides.yaml").write_text(VALID.replace("complete:", "complet:"))
    code, said = run("pause rides", streams)
    assert (code, "rides is paused; " in said, "complet: is an unknown key" in said) == (0, True, True)
    code, said = run("health", streams)
    assert (code, "city.rides " in said, "complet: is an unknown key" in said) == (10, True, True)
    for command in ("resume rides", "restart rides"):
        assert run(command, streams)[0] == 10, "its writer could not be started"


@pytest.mark.parametrize("command", ["validate", "status", "health", "run rides", "preview rides"])
def test_each_command_names_a_broken_file_as_the_user_gave_its_folder(run: Run, streams: Path, command: str) -> None:
    (streams / "rides.yaml").write_text("name: [")
    for folder in (Path("streams"), streams):
        code, said = run(command, folder)
        assert (code, re.findall(r"\S*rides\.yaml", said)) == (10, [f"{folder}/rides.yaml"])


@pytest.mark.parametrize("topic", ["my:topic", "x" * 250, "é"])
def test_infer_refuses_a_name_that_no_topic_can_have(run: Run, streams: Path, topic: str) -> None:
    code, said = run(f"infer {topic} --bootstrap-servers 127.0.0.1:1", streams)
    assert (code, f"Invalid value for 'TOPIC': '{topic}'; Kafka allows 1 to 249 letters" in said) == (2, True)


def test_a_running_foreground_writer_is_not_reported_as_stopped(run: Run, streams: Path) -> None:
    with WriterLock(run_folder("rides")):
        for command, expected in (("pause rides", 0), ("restart rides", 9)):
            code, said = run(command, streams)
            assert (code, f"(Ctrl-C in its terminal, or `kill {os.getpid()}`" in said) == (expected, True)
        assert "it runs in the foreground" in run("resume rides", streams)[1]
    assert "rides is paused; no writer runs. No supervisor starts one" in run("pause rides", streams)[1]


@pytest.mark.parametrize("command", OF_A_STREAM)
def test_an_unknown_stream_is_reported_with_those_that_are_known(run: Run, streams: Path, command: str) -> None:
    code, said = run(command.replace(" rides", " riders"), streams)
    assert code == 10
    assert "did you mean rides? known: rides" in said


@pytest.mark.parametrize("content", ["catalog:\n\tdefault: x\n", "catalog: [1", "catalog: hello\n", "\0"])
@pytest.mark.parametrize("command", WITH_A_CATALOG)
def test_a_catalog_configuration_that_cannot_be_read_is_reported(
    run: Run, streams: Path, tmp_path: Path, command: str, content: str
) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text(content)
    code, said = run(command, streams)
    assert ".pyiceberg.yaml" in said
    assert len(said.splitlines()) <= 14
    assert code == 10 or command.startswith(("status", "health"))  # which show what they can


@pytest.mark.parametrize("command", WITH_A_CATALOG)
def test_an_unavailable_catalog_is_reported_in_one_sentence(
    run: Run, streams: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", "http://127.0.0.1:1")
    code, said = run(command, streams)
    assert "cannot be reached at http://127.0.0.1:1: Connection refused" in said
    assert "HTTPConnectionPool" not in said
    assert code == 21 or command.startswith(("status", "health"))


def test_ten_streams_whose_catalog_is_away_are_one_line(
    run: Run, streams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        text = VALID.replace("name: rides", f"name: rides{number}").replace("city.rides", f"city.rides{number}")
        (streams / f"{number}.yaml").write_text(text)
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", "http://127.0.0.1:1")
    _, said = run("status", streams)
    assert said.count("cannot be reached") == 1
    assert "rides, rides0, rides1 and 8 more: the table cannot be read" in said


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("{fetch.min.byte: 1}", 'No such configuration property: "fetch.min.byte"'),
        ("{security.protocol: SSLX}", 'Invalid value "SSLX"'),
    ],
)
def test_validate_asks_librdkafka_about_its_properties(run: Run, streams: Path, declared: str, words: str) -> None:
    text = VALID.replace('"127.0.0.1:1"', f'"127.0.0.1:1", properties: {declared}')
    (streams / "rides.yaml").write_text(text)
    code, said = run("validate", streams)
    assert code == 10
    assert "source.properties." in said
    assert words in said


def _write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


NEIGHBOURS: dict[str, Callable[[Path], object]] = {
    "no YAML": _write("name: other\n  source: ["),
    "no mapping": _write("- a\n"),
    "an unknown key": _write(VALID.replace("rides", "other") + "nope: 1\n"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "a folder": lambda path: path.mkdir(),
    "a dangling link": lambda path: path.symlink_to("/nowhere/at/all"),
}
OF_ONE_STREAM = [
    *("status rides", "dlq list rides", "dlq show rides", "audit rides", "partitions city.rides", "health city.rides"),
    *("maintain city.rides --dry-run", "orphans city.rides", "pause rides", "resume rides", "cut rides"),
]


@pytest.mark.parametrize("broken", NEIGHBOURS)
def test_a_broken_file_of_another_stream_blocks_no_command_about_this_stream(
    run: Run, streams: Path, broken: str
) -> None:
    (streams / "rides.yaml").write_text(VALID.replace("id: long not null", "id: long"))
    MadeStream(load_stream(streams / "rides.yaml"), now_ms=0, partitions=1).land({0: (0, 3)})
    NEIGHBOURS[broken](streams / "another.yaml")
    assert {words: run(words, streams)[0] for words in OF_ONE_STREAM} == dict.fromkeys(OF_ONE_STREAM, 0)
