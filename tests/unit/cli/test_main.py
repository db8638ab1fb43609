"""The command itself: its help appears at once."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from frazil.cli import main
from frazil.cli.main import COMMANDS, frazil

HELP = """
import sys
from click.testing import CliRunner
from frazil.cli.main import frazil
print(CliRunner().invoke(frazil, ["--help"]).output)
print([name for name in sys.modules if name.split(".")[0] in {"pyarrow", "pyiceberg", "pyspark", "pandas"}])
"""


def test_the_help_names_every_command_and_imports_none() -> None:
    *lines, loaded = subprocess.run(
        [sys.executable, "-c", HELP], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    reported = dict(line.split(maxsplit=1) for line in lines if line.split(" ")[2:3] and line.split()[0] in COMMANDS)
    assert reported.keys() == COMMANDS.keys()
    assert reported["validate"].startswith("Check declared streams")
    assert loaded == "[]"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk of a file is full: [Errno 28] No space left on device. Free space on it"),
        (errno.EIO, "the disk of a file fails: [Errno 5] Input/output error. Check the disk"),
        (errno.EROFS, "the disk of a file is read-only: [Errno 30] Read-only file system. Remount it"),
        (errno.EACCES, "a file: the file system refuses access ([Errno 13] Permission denied)"),
    ],
)
def test_a_fault_of_the_disk_is_reported_in_a_sentence(
    code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def meets_it() -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(main, "frazil", meets_it)
    with pytest.raises(SystemExit) as ended:
        main.main()
    said = capsys.readouterr().err
    assert said.startswith(f"EnvironmentUnusable: {words}")
    assert (ended.value.code, said.count("\n")) == (1, 1)


def test_a_misspelled_command_is_answered_with_a_suggestion() -> None:
    said = CliRunner().invoke(frazil, ["statsu"])
    assert said.exit_code == 2
    assert "No such command 'statsu'; did you mean `frazil status`?" in said.output
    assert "did you mean" not in CliRunner().invoke(frazil, ["xyzzy"]).output


def test_a_deleted_current_folder_is_reported_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    monkeypatch.setattr(sys, "argv", ["frazil", "status"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    said = "EnvironmentUnusable: the current folder was deleted. Change to a folder that exists\n"
    assert (ended.value.code, capsys.readouterr().err) == (1, said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_standard_output_is_reported_in_a_sentence() -> None:
    command = [sys.executable, "-m", "frazil", "cost", "--json", "--streams", "/nonexistent"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), "Traceback" in done.stderr) == (10, 1, False), done.stderr
