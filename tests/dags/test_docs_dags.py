"""What the pages show of DAG files is parsed by an Airflow, without errors and without warnings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.pages import CHECKOUT, all_blocks

INSTALL = "docs/how-to/install.md"
NOTIFIERS = "docs/how-to/send-alerts.md"
"""It needs providers that are not installed here: tests/dags/test_notifications.py."""


def test_the_dag_files_of_the_pages_parse(
    tmp_path: Path, parse: Callable[..., dict[str, Any]], parsed: dict[str, Any]
) -> None:
    (tmp_path / "include").symlink_to(CHECKOUT / "include")
    python = [block for block in all_blocks() if block.kind == "python" and block.page != NOTIFIERS]
    shown = [block for block in python if "airflow" in block.text]
    project, others = tmp_path / "dags", tmp_path / "others"
    for number, block in enumerate(shown):
        folder = project if block.page == INSTALL else others
        folder.mkdir(exist_ok=True)
        (folder / f"file_{number}.py").write_text(
            block.text.replace("/opt/project/include/streams", str(CHECKOUT / "include" / "streams"))
        )
    whole = parse(project, home=tmp_path / "airflow")
    assert (whole["errors"], whole["warnings"]) == ({}, [])
    assert sorted(whole["dags"]) == sorted(parsed["dags"])
    rest = parse(others, home=tmp_path / "airflow-of-others")
    assert (rest["errors"], rest["warnings"]) == ({}, [])
    assert sorted(rest["dags"]) == ["frazil_health", "report"]
