"""Every rule of an alert stands in one table, on one page, and in the runbook; its threshold can be declared."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from frazil.maintenance.rules import RULES, runbook_of
from frazil.spec.maintenance import Alerts
from tests.runbook import entries

CODE = [Path("include/frazil/maintenance", name) for name in ("alert_rules.py", "stream_rules.py", "unmeasured.py")]
PAGE = Path("docs/reference/alerts.md")


def test_the_page_has_each_rule_with_its_threshold_and_when_it_fires() -> None:
    rows = re.findall(r"^\| \[`([\w-]+)`\]\(\.\./runbook\.md#([\w-]+)\) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.M)
    said = {rule: (anchor, threshold, fires) for rule, anchor, threshold, fires in rows}
    assert said == {
        name: (name, f"`{rule.threshold}`" if rule.threshold else "none", rule.hold) for name, rule in RULES.items()
    }


def test_the_runbook_has_an_entry_for_each_rule() -> None:
    found = entries()
    assert found.keys() == RULES.keys()
    for rule, text in found.items():
        assert "**You see**" in text, rule
        assert "**It means**" in text, rule
        assert "**Be sure**" in text, rule


def test_each_threshold_can_be_declared() -> None:
    declared = {name.replace("_", "-") for name in Alerts.model_fields}
    assert {rule.threshold for rule in RULES.values() if rule.threshold} <= declared


def test_no_rule_of_the_code_is_missing() -> None:
    named = set()
    for file in CODE:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"Reading", "flag"}:
                first = node.args[0]
                parts = first.values if isinstance(first, ast.JoinedStr) else [first]
                if isinstance(parts[0], ast.Constant):
                    named.add(str(parts[0].value).rstrip(":"))
    assert named | {"unmeasured"} == RULES.keys()


def test_a_team_may_keep_its_own_runbook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runbook_of("freshness:rides") == "docs/runbook.md#freshness"
    monkeypatch.setenv("FRAZIL_RUNBOOK", "wiki/frazil")
    assert runbook_of("late-window") == "wiki/frazil#late-window"
