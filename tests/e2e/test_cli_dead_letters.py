"""Dead letters in the command line: accepted, replayed in parts, interrupted, and shown by `frazil status`."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from frazil.backfill.commit import BackfillCommitter
from frazil.commit.backfill_records import Worker
from frazil.errors import CircuitOpen

BREAKER = "dead-letters: {circuit: {share: 50%, at-least: 10}}\n"


def field(shown: str, name: str) -> str:
    (line,) = re.findall(rf"^{name}  +(.+)$", shown, re.MULTILINE)
    return str(line)


@pytest.fixture
def rejected(stream: Any, events: Any, in_this_process: None) -> Any:  # noqa: ARG001
    """A stream with rows, three dead letters with one reason that now decode, and two with another."""
    stream.declare()
    stream.produce([*events(range(5)), *(b'{"at": "2024-01-01T00:00:00Z"}',) * 3, b"no JSON", b"no JSON"])
    stream.catch_up()
    file = stream.streams / f"{stream.name}.yaml"
    file.write_text(file.read_text().replace("id: long not null", "id: long"))
    stream.catch_up()
    return stream


def test_rejected_records_that_an_operator_accepted_are_counted_by_reason_and_as_unresolved(
    stream: Any, events: Any, frazil: Any
) -> None:
    stream.declare(BREAKER)
    stream.produce([*events(range(5)), *(b"no JSON %d" % n for n in range(20))])
    with pytest.raises(CircuitOpen):
        stream.catch_up()
    assert frazil("resume", stream.name, "--accept").returncode == 0
    stream.catch_up()
    assert frazil("dlq", "discard", stream.name, "--because", "a test", "--yes").returncode == 0
    assert field(frazil("status", stream.name).stdout, "rejected").startswith("20 in the last day, 0 of them left; ")


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch, frazil: Any) -> Callable[..., None]:
    """Press Ctrl-C after a replay has staged its rows, and report its process as ended."""

    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def run(*arguments: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "current_process", lambda: Worker(socket.gethostname(), 2**22 + 1, 0.0))
            patch.setattr(BackfillCommitter, "publish", press)
            assert frazil(*arguments).returncode == 1

    return run


def test_an_interrupted_replay_is_continued_by_the_command_that_status_shows(
    rejected: Any, frazil: Any, interrupt: Callable[..., None]
) -> None:
    interrupt("dlq", "replay", rejected.name, "--reason", "MissingRequired")
    command = f"frazil dlq replay {rejected.name} --reason MissingRequired"
    shown = frazil("status", rejected.name).stdout
    assert field(shown, "backfill").endswith("its run failed or was interrupted; to finish it:")
    assert command in [line.strip() for line in shown.splitlines()]
    assert f"`{command}` finishes it" in frazil("dlq", "list", rejected.name).stderr
    done = frazil(*command.split()[1:])
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 dead letters are rows now; 0 failed again" in done.stdout
    left = json.loads(frazil("dlq", "list", rejected.name, "--json").stdout)
    assert [(one["reason"], one["dead-letters"], one["replayed"]) for one in left] == [("NotAnObject", 2, 0)]


def test_a_replay_reports_that_it_first_finishes_one_with_another_selection(
    rejected: Any, frazil: Any, interrupt: Callable[..., None]
) -> None:
    interrupt("dlq", "replay", rejected.name, "--reason", "MissingRequired")
    done = frazil("dlq", "replay", rejected.name)
    assert done.returncode == 0
    assert f"finished first, as `frazil dlq replay {rejected.name} --reason MissingRequired` would" in done.stderr
    assert "Finished a replay that another command began. Stream events: 3 dead letters are rows now" in done.stdout
    assert "0 dead letters are rows now; 2 failed again" in done.stdout


def test_status_shows_the_commit_of_a_replay(rejected: Any, frazil: Any) -> None:
    assert " by a " not in field(frazil("status", rejected.name).stdout, "last commit")
    assert frazil("dlq", "replay", rejected.name).returncode == 0
    shown = frazil("status", rejected.name).stdout
    assert re.fullmatch(r".+ ago by a replay, .+ ago by a writer", field(shown, "last commit"))
    assert re.fullmatch(r".+ ago: 3 landed, 2 failed again", field(shown, "last replay"))
    (state,) = json.loads(frazil("status", rejected.name, "--json").stdout)["streams"]
    assert state["published-at-ms"] > state["last-commit-at-ms"]


def test_dead_letters_are_shown_while_the_stream_s_file_is_broken(rejected: Any, frazil: Any) -> None:
    assert frazil("status", rejected.name).returncode == 0
    file = rejected.streams / f"{rejected.name}.yaml"
    file.write_text(f"{file.read_text()}nonsense: 1\n")
    for command in ("list", "show"):
        done = frazil("dlq", command, rejected.name)
        assert done.returncode == 0
        assert "MissingRequired" in done.stdout
        assert "nonsense: is an unknown key" in done.stderr
    assert frazil("dlq", "replay", rejected.name).returncode == 10
