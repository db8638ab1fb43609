"""The writer's log, as its supervisor forwards it."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.host import writer_log
from frazil.host.launcher import LogPosition
from frazil.host.process_log import log_to_file
from frazil.host.writer_log import (
    LOG_FILE,
    MAX_LOGS,
    TRUNCATED_LINE,
    last_error,
    parse_levels,
    read_lines,
    rotate_full_log,
    rotate_log,
)


def test_a_log_line_keeps_its_level_and_a_stack_trace_has_the_level_of_its_first_line():
    lines = [
        "said before any level",
        "2026-11-22 05:00:00,123 INFO frazil.stream.batch: batch 1-1: 3 records",
        "2026-11-22 05:00:01,123 WARNING frazil.stream.batch: something: WARN is no level here",
        "26/11/22 05:00:02 WARN TaskSetManager: Lost task 0.0 in stage 0.0",
        "26/11/22 05:00:03 ERROR Executor: Exception in task 0.0",
        "java.io.IOException: no space left",
        "\tat java.base/java.io.FileOutputStream.write",
        "2026-11-22 05:00:04,123 INFO frazil: the next",
    ]
    levels = [level for level, _ in parse_levels(lines)]
    assert levels == [
        logging.INFO, logging.INFO, logging.WARNING, logging.WARNING, logging.ERROR, logging.ERROR, logging.ERROR,
        logging.INFO,
    ]  # fmt: skip
    assert [line for _, line in parse_levels(lines)] == lines


def say(folder: Path, line: object) -> None:
    with (folder / LOG_FILE).open("a") as log:
        print(line, file=log)


def text(folder: Path, name: str = LOG_FILE) -> str:
    return (folder / name).read_text()


def test_a_full_log_is_rotated_and_processes_that_hold_it_open_continue(tmp_path: Path):
    with (tmp_path / LOG_FILE).open("a") as held:
        print("x" * 100, file=held, flush=True)
        assert not rotate_full_log(tmp_path, full_bytes=1_000)
        assert rotate_full_log(tmp_path, full_bytes=100)
        print("after", file=held, flush=True)
    assert text(tmp_path) == f"{TRUNCATED_LINE}\nafter\n"
    assert text(tmp_path, f"{LOG_FILE}.1") == "x" * 100 + "\n"


def test_no_more_than_five_old_logs_are_kept(tmp_path: Path):
    for number in range(MAX_LOGS + 3):
        say(tmp_path, number)
        assert rotate_full_log(tmp_path, full_bytes=1)
    assert len(list(tmp_path.iterdir())) == 1 + MAX_LOGS
    assert text(tmp_path, f"{LOG_FILE}.{MAX_LOGS}") == f"{TRUNCATED_LINE}\n3\n"


def test_rotating_a_missing_log_does_nothing(tmp_path: Path):
    assert not rotate_full_log(tmp_path, full_bytes=0)
    assert list(tmp_path.iterdir()) == []


def test_lines_that_another_process_logs_during_a_rotation_stay_in_order_and_unrepeated(tmp_path: Path):
    counting = (
        "import select, sys\nn = 0\nwhile not select.select([sys.stdin], [], [], 0)[0]:\n"
        "  print(f'{n:012}', flush=True)\n  n += 1\nprint(f'{n:012}', flush=True)\nprint(n, file=sys.stderr)"
    )
    with (tmp_path / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", counting], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.PIPE
        )
    while not (tmp_path / f"{LOG_FILE}.{MAX_LOGS}").exists():
        rotate_full_log(tmp_path, full_bytes=5_000)
    _, last = process.communicate()
    names = [*(f"{LOG_FILE}.{n}" for n in range(MAX_LOGS, 0, -1)), LOG_FILE]
    lines = "".join(text(tmp_path, name) for name in names if (tmp_path / name).exists()).splitlines()
    numbers = [int(line) for line in lines if len(line) == 12]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (0, int(last))


def test_a_reader_gets_every_line_across_rotations_once(tmp_path: Path):
    log, said = tmp_path / LOG_FILE, itertools.count()
    seen: list[int] = []
    position: LogPosition | None = None

    def more(lines: int) -> None:
        for _ in range(lines):
            say(tmp_path, f"{next(said):020}")

    def read() -> LogPosition:
        chunk = read_lines(log, launch_id="l", since=position, limit_bytes=10_000)
        assert chunk is not None
        seen.extend(int(line) for line in chunk.lines if line != TRUNCATED_LINE)
        return chunk.position

    for _ in range(3):
        more(10)
        position = read()
        more(2)
        rotate_full_log(tmp_path, full_bytes=1)
        more(1)
        position = read()
    assert seen == list(range(next(said)))
    assert position == LogPosition("l", log.stat().st_size)


def test_the_last_error_is_found_behind_a_rotation(tmp_path: Path):
    (tmp_path / LOG_FILE).write_text("one\ntwo\nthree\nfour\nfive\n")
    rotate_full_log(tmp_path, full_bytes=1)
    say(tmp_path, "OutOfMemoryError")
    assert last_error(tmp_path) == "two\nthree\nfour\nfive\nOutOfMemoryError"


def test_a_truncated_log_is_not_reported_as_a_warning_of_the_writer(tmp_path: Path):
    line = "2013-12-30 00:00:00,000 INFO frazil.stream.writer: committed a batch\n"
    (tmp_path / LOG_FILE).write_text(line * 1_000)
    assert last_error(tmp_path, min_level=logging.WARNING) is None


def test_the_last_error_is_never_that_of_the_launch_before(tmp_path: Path):
    (tmp_path / LOG_FILE).write_text("the launch before\n")
    rotate_log(tmp_path)
    (tmp_path / LOG_FILE).write_text("")
    assert last_error(tmp_path) is None


def test_a_log_that_cannot_be_copied_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / LOG_FILE).write_text("one\n")
    monkeypatch.setattr(writer_log, "_copy_rest", full)
    with pytest.raises(OSError, match="No space"):
        rotate_full_log(tmp_path, full_bytes=1)
    assert {path.name for path in tmp_path.iterdir()} == {LOG_FILE}
    assert text(tmp_path) == "one\n"


def test_a_log_emptied_by_hand_is_read_from_its_beginning(tmp_path: Path):
    say(tmp_path, "x" * 100)
    first = read_lines(tmp_path / LOG_FILE, launch_id="a", since=None, limit_bytes=1_000)
    assert first is not None
    (tmp_path / LOG_FILE).write_text("after\n")  # and there is no log before it
    chunk = read_lines(tmp_path / LOG_FILE, launch_id="a", since=first.position, limit_bytes=1_000)
    assert chunk is not None
    assert chunk.lines == ("after",)
    assert chunk.position == LogPosition("a", len("after\n"))


def test_a_command_and_its_jvm_write_to_one_log_without_overwriting_each_other(tmp_path: Path):
    path = tmp_path / "command.log"
    path.write_text("an earlier run\n")
    with log_to_file(path), path.open("a") as jvm:
        for number in range(2):
            print(f"trace {number}", file=jvm, flush=True)
            logging.getLogger("frazil").warning("after trace %d", number)
    lines = [line.rpartition(": ")[2] for line in path.read_text().splitlines()]
    assert lines == ["trace 0", "after trace 0", "trace 1", "after trace 1"]
