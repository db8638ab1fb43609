"""Runs the quick start block by block in one shell, as a reader types it.

Each run starts in an empty folder with its own broker. The output of each block is compared with the page.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from frazil.dev.airflow import EmbeddedAirflow
from frazil.dev.process import choose_free_port
from tests.airflow_api import AirflowApi, eventually
from tests.pages import CHECKOUT, Block, alike, blocks, says, section

TUTORIAL = "docs/tutorial/first-stream.md"
KAFKA_PORT, AIRFLOW_PORT = "9092", "8080"
ALONE = ("## A stream of your own", "## Kill a writer", "## Add a column")
IN_AIRFLOW = ("## Let Airflow run it", "## Look at the page", "## Let something go wrong", "## Clean up")
END_OF_BLOCK = "--- the block has ended"


class Shell:
    """A reader's shell: a bash that keeps what earlier blocks set, and ends at the first command that fails."""

    def __init__(self, folder: Path, ports: dict[str, str]) -> None:
        self.folder = folder
        self._complaints, self._ports = (folder.parent / "complaints").open("w+"), ports
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("FRAZIL_JARS") or not name.startswith(("FRAZIL_", "PYICEBERG_"))
        }
        self._bash = subprocess.Popen(
            ["bash", "-e"],
            cwd=folder,
            env={**kept, "TZ": "UTC"},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
        )

    def type(self, what: str, program: str) -> str:
        """Type into the shell. Return the standard output."""
        for shown, port in self._ports.items():
            program = program.replace(shown, port)
        assert self._bash.stdin
        assert self._bash.stdout
        self._bash.stdin.write(f"{program}\necho '{END_OF_BLOCK}'\n")
        self._bash.stdin.flush()
        printed: list[str] = []
        for line in self._bash.stdout:
            if line.rstrip() == END_OF_BLOCK:
                return "".join(printed)
            printed.append(line)
        self._complaints.seek(0)
        raise AssertionError(f"{what} failed:\n{''.join(printed)}\n{self._complaints.read()[-3000:]}")

    def leave(self) -> None:
        """End the shell and its background processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        with self._complaints:
            self._bash.communicate(timeout=60)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "empty"
    folder.mkdir()
    opened = Shell(folder, {KAFKA_PORT: str(choose_free_port()), AIRFLOW_PORT: str(choose_free_port())})
    home = folder / ".frazil"
    try:
        yield opened
    finally:
        opened.leave()
        subprocess.run(
            ["frazil", "dev", "down"], cwd=folder, env={**os.environ, "FRAZIL_HOME": str(home)}, check=True, timeout=60
        )
        for pid in writers(home):  # of a walk that failed
            os.kill(pid, signal.SIGKILL)


def writers(home: Path) -> list[int]:
    """The processes that Airflow started, and left to themselves."""
    found = []
    for candidate in psutil.process_iter():
        with suppress(psutil.Error):
            if candidate.environ().get("FRAZIL_HOME") == str(home):
                found.append(candidate.pid)
    return found


def walk(shell: Shell, blocks: list[Block]) -> None:
    printed = ""
    for block in blocks:
        if block.kind == "sh":
            printed = shell.type(str(block), block.program)
        elif block.kind == "output":
            assert says(printed, block.text), f"{block} differs from what was printed:\n{printed}"
        else:
            for command, answer in block.answers():
                printed = shell.type(str(block), command)
                assert alike(printed, answer), f"{block} differs from what was printed:\n{printed}"


def test_no_block_of_the_quick_start_is_left_out() -> None:
    assert [block for heading in (*ALONE, *IN_AIRFLOW) for block in section(TUTORIAL, heading)] == blocks(TUTORIAL)


@pytest.mark.rotates(2)
def test_the_quick_start_can_be_followed_until_airflow_starts(shell: Shell) -> None:
    for heading in ALONE:
        walk(shell, section(TUTORIAL, heading))


def switch_on(airflow: AirflowApi, shown: str) -> None:
    """A DAG by the name that Airflow's UI shows."""

    def listed() -> dict[str, Any] | None:
        return next((dag for dag in airflow.dags() if dag["dag_display_name"] == shown), None)

    airflow.set_paused(eventually(listed)["dag_id"], False)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_quick_start_can_be_followed_to_its_end(shell: Shell) -> None:
    for heading in ALONE:
        walk(shell, section(TUTORIAL, heading))
    in_airflow, page, wrong, clean_up = (section(TUTORIAL, heading) for heading in IN_AIRFLOW)
    start, steady = in_airflow
    walk(shell, [start])
    airflow = AirflowApi.of(EmbeddedAirflow(shell.folder / ".frazil" / "dev" / "airflow", CHECKOUT))
    shown = re.findall(r"^- \*(.+?)\*", Path(TUTORIAL).read_text(), re.MULTILINE)
    for name in shown:
        switch_on(airflow, name)
    assert len(shown) == 3
    walk(shell, [steady, *page, *wrong])
    seen = airflow.call("GET", "/frazil/ops/api/stream/rides")
    assert [run["outcome"] for run in seen["runs"]][:2] == ["runs, supervised by Airflow", "was ended by signal 9"]
    assert "TypeMismatch" in {rejected["reason"] for rejected in seen["rejected"]}
    walk(shell, clean_up)
    assert writers(shell.folder / ".frazil") == []
