"""Every alert rule is in one table, on one page and in the runbook; its threshold can be declared."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from frazil.maintenance.alerts import runbook_link
from frazil.spec.maintenance import Alerts
from tests import alerts_page
from tests.alerts_page import RULES, Hold, Rule
from tests.runbook import ELSEWHERE, IN_THE_SENTENCE, commands, entries, part
from tests.runbook import PAGE as RUNBOOK

CODE = [Path("include/frazil/maintenance", name) for name in ("alerts.py", "stream_rules.py")]
PAGE = Path("docs/reference/alerts.md")


EXAMPLES = alerts_page.examples()


def test_the_alerts_page_describes_each_rule_as_the_code_evaluates_it() -> None:
    assert PAGE.read_text() == alerts_page.render(), f"run: python -m tests.alerts_page > {PAGE}"


@pytest.mark.parametrize("rule", EXAMPLES)
def test_each_rule_is_read_with_the_threshold_and_the_hold_that_are_declared(rule: str) -> None:
    reading, alerts = EXAMPLES[rule], Alerts()
    known = RULES.get(rule, Rule("dead-letters-per-minute", Hold.NONE))
    declared = getattr(alerts, known.threshold.replace("-", "_")) if known.threshold else 0
    if declared is None:
        declared = alerts_page.NO_DEFAULT[str(known.threshold)]
    assert reading.threshold == (declared.total_seconds() if isinstance(declared, timedelta) else declared)
    assert (reading.hold_ms == 0) == (known.hold is Hold.NONE)
    assert reading.is_beyond
    assert not replace(reading, value=reading.threshold).is_beyond
    assert replace(reading, value=0.8 * reading.threshold).is_clear
    assert not replace(reading, value=0.8 * reading.threshold + 0.01).is_clear


def test_the_runbook_has_an_entry_for_each_rule() -> None:
    found = entries()
    assert found.keys() == RULES.keys()
    for rule, text in found.items():
        meaning, _, rest = text.partition("**")
        assert meaning.strip(), rule
        assert "**Verify**" in rest, rule


@pytest.mark.parametrize("rule", RULES)
def test_each_runbook_entry_has_commands_that_fix_the_problem_or_is_listed_as_fixed_elsewhere(rule: str) -> None:
    fixes = bool(commands(rule, "Fix")) or "```python" in part(rule, "Fix")
    assert fixes == (rule not in ELSEWHERE | IN_THE_SENTENCE)
    introduction = RUNBOOK.read_text().partition("\n## ")[0]
    assert set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^- .*$", introduction, re.MULTILINE)))) == ELSEWHERE
    assert commands(rule, "Verify") or rule in {"aggregation", "runs"}, "only Airflow's UI shows it"


def test_each_threshold_can_be_declared() -> None:
    declared = {name.replace("_", "-") for name in Alerts.model_fields}
    assert {rule.threshold for rule in RULES.values() if rule.threshold} <= declared


def test_no_rule_of_the_code_is_missing() -> None:
    named = set()
    for file in CODE:
        for node in ast.walk(ast.parse(file.read_text())):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
            if isinstance(node, ast.Call) and called in {"Reading", "boolean_reading"}:
                first = node.args[0]
                parts = first.values if isinstance(first, ast.JoinedStr) else [first]
                if isinstance(parts[0], ast.Constant):
                    named.add(str(parts[0].value).rstrip(":"))
    assert named | {"unmeasured"} == RULES.keys()


def test_a_team_may_keep_its_own_runbook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runbook_link("freshness:rides") == "docs/runbook.md#freshness"
    monkeypatch.setenv("FRAZIL_RUNBOOK", "wiki/frazil")
    assert runbook_link("late-window") == "wiki/frazil#late-window"
