"""`frazil init`: the files of a new project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from frazil.cli import init
from frazil.cli.main import frazil
from frazil.spec.load import load_stream


def test_a_new_project_has_dags_and_a_valid_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(frazil, ["init", str(tmp_path / "new")], catch_exceptions=False)
    assert done.exit_code == 0
    assert {str(tmp_path / "new" / name) for name in init.FILES} <= set(done.output.splitlines())
    monkeypatch.setenv("FRAZIL_KAFKA", "broker:9092")
    assert load_stream(tmp_path / "new/include/streams/rides.yaml").table.identifier == "city.rides"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_project_whose_streams_other_commands_do_not_read_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    streams = tmp_path / "new" / "include" / "streams"
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path / "other" if elsewhere else streams))
    done = CliRunner().invoke(frazil, ["init", str(tmp_path / "new")], catch_exceptions=False)
    expected = f"and FRAZIL_STREAMS to {streams} (now it is {tmp_path / 'other'}), then run `frazil validate`"
    assert (expected in done.output) == elsewhere


def test_files_that_exist_are_kept(tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags/streams.py").write_text("# mine\n")
    done = CliRunner().invoke(frazil, ["init", str(tmp_path), "--json"], catch_exceptions=False)
    answer = json.loads(done.output)
    assert answer["kept"] == ["dags/streams.py"]
    assert len(answer["written"]) == len(init.FILES) - 1
    assert (tmp_path / "dags/streams.py").read_text() == "# mine\n"
    assert "exists, kept" in CliRunner().invoke(frazil, ["init", str(tmp_path)]).output


def test_a_project_is_not_written_into_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "include" / "frazil"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(frazil, ["init"])
    assert (refused.exit_code, f"{tmp_path} is the checkout of frazil" in refused.output) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["include"]
    assert CliRunner().invoke(frazil, ["init", "mine"]).exit_code == 0
