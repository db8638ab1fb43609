"""The dashboard and the rules in deploy/monitoring name metrics that exist, and load."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.telemetry import metrics as m
from frazil.telemetry.telemetry import format_exposition

MONITORING = Path("deploy/monitoring").absolute()
NAMES = {metric.prometheus for metric in m.METRICS}
TIMES = {
    f"{x.prometheus}_{end}" for x in m.METRICS if x.type is m.MetricType.HISTOGRAM for end in ("bucket", "sum", "count")
}


def named(expression: str) -> set[str]:
    return set(re.findall(r"\bfrazil_[a-z_]+", expression))


def expressions(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            yield target["expr"]


def test_each_metric_of_the_dashboard_exists_and_each_panel_has_a_title_and_a_description() -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["description"] for panel in panels)
    for expression in expressions(panels):
        assert named(expression), expression
        assert named(expression) <= NAMES | TIMES
    assert all(named(one["definition"]) <= NAMES for one in dashboard["templating"]["list"] if "definition" in one)


def test_no_dashboard_panel_overlaps_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_each_metric_in_the_rules_exists_and_each_alert_has_an_action_and_a_test() -> None:
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"][0]["rules"]
    tried = (MONITORING / "rules_test.yaml").read_text()
    for rule in rules:
        assert named(rule["expr"]) <= NAMES | TIMES, rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]
        assert re.search(rf"alertname: {rule['alert']}\n", tried), f"{rule['alert']} never fires in rules_test.yaml"
        assert f"alertname: {rule['alert']}, exp_alerts: []" in tried, f"{rule['alert']} never resolves"


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prometheus' own tool, from the PATH or from Debian's package."""
    if found := shutil.which("promtool"):
        return Path(found)
    folder = tmp_path_factory.mktemp("prometheus")
    for command in (["apt-get", "download", "prometheus"], ["sh", "-c", "dpkg -x prometheus_*.deb ."]):
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"promtool is neither installed nor to be had: {error}")
        if done.returncode:
            pytest.skip(f"promtool is neither installed nor to be had: {done.stderr.strip()}")
    return folder / "usr/bin/promtool"


@pytest.mark.processes
def test_the_rules_load_and_each_alert_fires_and_resolves(promtool: Path) -> None:
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run([promtool, *command], cwd=MONITORING, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
def test_published_metrics_pass_promtool_check(promtool: Path) -> None:
    meters = m.MetricValues()
    for metric in m.METRICS:
        labels = tuple("x" for _ in metric.labels)
        if metric.type is m.MetricType.HISTOGRAM:
            meters.observe(metric, labels, 1.0)
        else:
            meters.set(metric, labels, 1.5)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=format_exposition(meters), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
