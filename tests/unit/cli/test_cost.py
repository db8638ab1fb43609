"""`frazil cost`: the cost of each stream's commits at the prices in a file, even after their snapshots have expired."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from frazil.cli.main import frazil
from frazil.commit.journal import BatchCost
from frazil.status.cost import cost_of
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import BEGIN_MS, YAML, land, made_stream

PERIOD_MS = 86_400_000


@pytest.fixture
def made(tmp_path: Path, frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> MadeStream:  # noqa: ARG001
    stream = made_stream(tmp_path)
    (tmp_path / "made.yaml").write_text(YAML + "owner: Ice\n")
    stream.cost = BatchCost(cpu_ms=1_800_000, writes=3_000, reads=500)
    land(stream, 2)
    monkeypatch.setattr("frazil.clock.now_ms", lambda: stream.now_ms)
    return stream


def call(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(frazil, ["cost", *arguments, "--streams", str(folder)])


def costs(folder: Path, *arguments: str) -> dict[str, Any]:
    done = call(folder, "--json", *arguments)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout)["costs"])


def test_commits_are_summed_and_priced(made: MadeStream, tmp_path: Path):
    prices = tmp_path / "prices.yml.txt"
    prices.write_text("cpu-hour: 1\nthousand-writes: 0.1\nthousand-reads: 0.01\ncurrency: EUR\n")
    (found,) = costs(tmp_path, "made", "--prices", str(prices)).values()
    written = made.tables.main.current().current_snapshot().summary["total-files-size"]  # type: ignore[union-attr,index]
    assert found["cost"] == {
        "commits": 2,
        "cpu-s": 3600.0,
        "writes": 6_000,
        "reads": 1_000,
        "written-bytes": int(written),
    }
    assert found["price"] == pytest.approx(1 + 0.6 + 0.01)
    shown = call(tmp_path, "--prices", str(prices)).stdout
    assert "EUR1.6100" in shown
    assert "Also EUR0.0000 to store" in shown


def test_the_storage_cost_of_a_stream_includes_all_its_tables(made: MadeStream):
    at = made.tables.marker().offsets[made.topic, 0]  # type: ignore[union-attr]
    made.land({0: (at, at + 400)}, rejected={0: range(at, at + 400)})
    heads = [table.refresh().current_snapshot() for table in (made.tables.main, made.tables.dead_letters)]
    stored = sum(int(head.summary["total-files-size"]) for head in heads)  # type: ignore[union-attr,index]
    assert cost_of(made.spec, since_ms=0).stored_bytes == stored


def test_costs_are_summed_by_owner_and_by_day(made: MadeStream, tmp_path: Path):
    made.now_ms += 2 * PERIOD_MS
    land(made, 1)
    assert list(costs(tmp_path, "--by", "owner", "--last", "9d")) == ["Ice"]
    by_day = costs(tmp_path, "--by", "day", "--last", "9d")
    assert {day: one["cost"]["commits"] for day, one in by_day.items()} == {"2033-05-18": 2, "2033-05-20": 1}


def test_commits_before_the_period_do_not_count(made: MadeStream, tmp_path: Path):
    made.now_ms += 2 * PERIOD_MS
    assert costs(tmp_path) == {}
    land(made, 1)
    assert costs(tmp_path)["made"]["cost"]["commits"] == 1


def test_a_commit_has_its_cost_in_its_summary(made: MadeStream):
    head = made.tables.main.refresh().current_snapshot()
    assert head is not None
    assert head.summary is not None
    keys = ("frazil.cpu-ms", "frazil.storage-writes", "frazil.storage-reads")
    assert [head.summary[key] for key in keys] == ["1800000", "3000", "500"]
    assert made.now_ms > BEGIN_MS


def test_an_unknown_stream_or_an_invalid_price_is_refused(made: MadeStream, tmp_path: Path):  # noqa: ARG001
    assert str(call(tmp_path, "other").exception) == f"no stream 'other' in {tmp_path}; known: made"
    (tmp_path / "prices.txt").write_text("cpu-hour: -1\n")
    assert "cpu-hour" in str(call(tmp_path, "--prices", str(tmp_path / "prices.txt")).exception)
