"""The DAG of the dead letters: the form that it parses to, and the command that it comes to."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow.dead_letters.tasks import dlq_arguments

FORM = {
    "stream": "flights",
    "act": "replay",
    "dry-run": True,
    "reasons": None,
    "from": None,
    "to": None,
    "because": None,
}


def test_the_form_asks_for_a_declared_stream_and_is_a_dry_run_unless_told_otherwise(parsed: dict[str, Any]) -> None:
    dag = parsed["dags"]["frazil_dead_letters"]
    assert dag["tasks"] == {"settle": "_PythonDecoratedOperator"}
    assert (dag["schedule"], dag["max_active_runs"], dag["tags"]) == (None, 1, ["dead letters", "frazil"])
    assert dag["params"] == FORM


def test_a_form_comes_to_one_command() -> None:
    assert dlq_arguments(FORM) == ["dlq", "replay", "flights", "--dry-run", "--json"]
    filled = {**FORM, "reasons": ["NotJson", "WrongType"], "from": "2013-12-30T00:00:00Z", "dry-run": False}
    bounds = ["--reason", "NotJson", "--reason", "WrongType", "--from", "2013-12-30T00:00:00Z"]
    assert dlq_arguments(filled) == ["dlq", "replay", "flights", *bounds, "--json"]
    discard = {**filled, "act": "discard", "because": " a test "}
    assert dlq_arguments(discard) == ["dlq", "discard", "flights", *bounds, "--because", "a test", "--yes", "--json"]
    with pytest.raises(AirflowFailException, match="says why"):
        dlq_arguments({**discard, "because": " "})
