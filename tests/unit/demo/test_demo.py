"""The demo's decisions: due records, its lag, whether the landed rows are exact, and whether it may start."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.days import HOURS, Days
from demo.interrupt import only_demo
from demo.landed import Summary, differences
from demo.parts import MARK, DemoParts
from demo.publish import SECONDS_PER_HOUR, LiveHours, Publisher
from demo.screen import Screen, State
from frazil.cli.main import enter_running_demo
from frazil.errors import EnvironmentUnusable
from frazil.home import home


def table(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int32())})


@pytest.mark.parametrize(
    "fault",
    [{"complete": 47}, {"reopened": ()}, {"reopened": HOURS[15:17]}, {"late": 4}, {"history": 1}, {"different": 1}],
    ids=str,
)
def test_the_two_demo_days_pass_only_with_all_hours_complete_one_reopened_and_equal_aggregates(fault: Any) -> None:
    right = {"complete": 48, "reopened": (HOURS[15],), "late": 5, "history": 0, "different": 0}
    assert Days(**right).right
    assert not Days(**{**right, **fault}).right


@given(st.sets(st.integers(0, 60), min_size=1), st.lists(st.floats(0, 40), max_size=10))
def test_every_hour_is_due_once_and_never_early(hours: set[int], steps: list[float]) -> None:
    live = LiveHours({hour: table(hour) for hour in hours}, started_s=100.0)
    now_s, sent = 100.0, []
    for step in [*steps, 61 * SECONDS_PER_HOUR]:
        now_s += step
        due = [part["n"][0].as_py() for part in live.due(now_s)]
        assert all(100.0 + hour * SECONDS_PER_HOUR <= now_s for hour in due)
        sent += due
    assert sent == sorted(hours)
    assert live.over


def test_the_oldest_waiting_record_is_the_first_that_is_not_committed() -> None:
    publisher = Publisher("127.0.0.1:1", "nowhere")
    publisher._waiting.extend([(10, 100.0), (20, 103.0)])
    assert publisher.oldest_waiting_s(9, now_s=104.0) == 4.0
    assert publisher.oldest_waiting_s(10, now_s=104.0) == 1.0
    assert publisher.oldest_waiting_s(20, now_s=104.0) == 0.0


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_two_tables_differ_by_the_rows_that_only_one_has(ours: list[int], theirs: list[int]) -> None:
    expected = sum(abs(ours.count(n) - theirs.count(n)) for n in range(4))
    assert differences(table(*ours), table(*theirs)) == expected


def test_rows_with_nulls_are_compared_like_others() -> None:
    assert differences(pa.table({"n": [None, 1]}), pa.table({"n": [1, None]})) == 0
    assert differences(pa.table({"n": [None, 1]}), pa.table({"n": [1, 1]})) == 2


@pytest.mark.parametrize(
    "fault",
    [{"rows": 9}, {"rows": 11, "duplicates": 1}, {"gaps": 1}, {"different": 2}, {"dead_letters": 1}],
    ids=str,
)
def test_any_deviation_makes_the_demo_summary_not_exact(fault: dict[str, int]) -> None:
    right = {"expected": 10, "rows": 10, "duplicates": 0, "gaps": 0, "different": 0, "dead_letters": 0}
    rest = {"files": 1, "commits": 1, "live": None}
    assert Summary(**right, **rest).exact  # type: ignore[arg-type]
    assert not Summary(**{**right, **fault}, **rest).exact  # type: ignore[arg-type]


def test_progress_outside_a_terminal_is_an_occasional_line() -> None:
    out = io.StringIO()
    screen = Screen(out)
    state = State(hour=14, published=335_100, committed=334_980, oldest_waiting_s=3.2, writer="staging")
    for now_s in range(11):
        screen.show(state, now_s=float(now_s))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "30 Dec 14:00  published 335,100  committed 334,980  lag 120  3 s behind  writer staging" in lines[0]


def test_a_second_demo_in_the_same_home_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    lock = tmp_path / "demo.lock"
    program = (
        "import sys; from pathlib import Path; from demo.interrupt import only_demo\n"
        "with only_demo(Path(sys.argv[1])):\n  print('held', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(lock)]
    checkout = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(EnvironmentUnusable, match=rf"pid {first.pid}\): end it with Ctrl-C"), only_demo(lock):
            pass
        first.communicate()
    with only_demo(lock):
        assert lock.read_text().isdigit()


def test_a_command_in_the_checkout_uses_the_running_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FRAZIL_HOME", "FRAZIL_STREAMS", "FRAZIL_AGGREGATIONS", "FRAZIL_KAFKA", "PYICEBERG_HOME", MARK):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    parts = DemoParts(tmp_path / ".frazil" / "demo", tmp_path, stream="flights", kafka_port=1, airflow_port=2)
    parts.make_home()
    parts.enter_home()
    monkeypatch.delenv("FRAZIL_HOME")
    enter_running_demo()
    assert (home(), capsys.readouterr().err) == (parts.home, f"Using the running demo (FRAZIL_HOME={parts.home}).\n")
    monkeypatch.delenv("FRAZIL_HOME")
    monkeypatch.setattr(os, "kill", Mock(side_effect=ProcessLookupError))
    enter_running_demo()
    assert home() == tmp_path / ".frazil", "the demo has ended"
