"""Shell completions, which load no heavy modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from frazil.cli.main import COMMANDS, frazil

YAML = (
    "name: {name}\nsource: {{topics: [{name}], format: json, bootstrap-servers: '127.0.0.1:1'}}\n"
    "table: city.{name}\nschema: {{at: timestamptz not null}}\nevent-time: at\n"
)


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("rides", "riders", "taxis"):
        (tmp_path / f"{name}.yaml").write_text(YAML.format(name=name))
    (tmp_path / "broken.yaml").write_text("name: rivers\n")
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    return tmp_path


def completed(*words: str, incomplete: str = "") -> list[str]:
    found = BashComplete(frazil, {}, "frazil", "_FRAZIL_COMPLETE").get_completions(list(words), incomplete)
    return [item.value for item in found]


def test_commands_are_completed_with_their_summaries() -> None:
    assert completed(incomplete="re") == ["resume", "restart", "reset", "reveal", "register"]
    assert completed() == list(COMMANDS)


def test_names_of_valid_streams_and_their_tables_are_completed(streams: Path) -> None:  # noqa: ARG001
    assert completed("status", incomplete="ri") == ["riders", "rides"]
    assert completed("cut", "rides", incomplete="t") == ["taxis"]
    assert completed("dlq", "list", incomplete="ta") == ["taxis"]
    assert completed("partitions", incomplete="city.t") == ["city.taxis", "city.taxis_dead_letters"]


def test_completion_uses_the_streams_folder_given_on_the_command_line(tmp_path: Path, streams: Path) -> None:
    (tmp_path / "other").mkdir()
    (streams / "other" / "boats.yaml").write_text(YAML.format(name="boats"))
    assert completed("pause", "--streams", str(tmp_path / "other")) == ["boats"]


def test_shell_completion_of_a_folder_without_streams_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path / "none"))
    assert completed("status") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    result = CliRunner().invoke(frazil, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert "_FRAZIL_COMPLETE" in result.stdout


@pytest.mark.processes
def test_bash_completion_loads_no_catalog(streams: Path) -> None:  # noqa: ARG001
    environment = {**os.environ, "_FRAZIL_COMPLETE": "bash_complete", "COMP_WORDS": "frazil sta", "COMP_CWORD": "1"}
    code = (
        "import sys; sys.argv[0] = 'frazil'; from frazil.cli.main import main\n"
        "try: main()\nfinally: print(sorted({'pyarrow', 'pyiceberg'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["plain,status", "[]"]
