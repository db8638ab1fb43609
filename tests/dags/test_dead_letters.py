"""The dead letters' DAG: its form, and the command that a run executes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow.dead_letters import dlq_arguments

FORM = {
    "stream": "flights",
    "action": "replay",
    "dry-run": True,
    "reasons": None,
    "from": None,
    "to": None,
    "because": None,
}


def test_the_form_asks_for_a_declared_stream_and_is_a_dry_run_unless_requested_otherwise(
    parsed: dict[str, Any],
) -> None:
    dag = parsed["dags"]["frazil_dead_letters"]
    assert dag["tasks"] == {"settle": "FrazilTask"}
    assert (dag["schedule"], dag["max_active_runs"], dag["tags"]) == (None, 1, ["dead letters", "frazil"])
    assert dag["params"] == FORM


def test_a_dead_letter_form_becomes_one_command() -> None:
    run = ["--run", "frazil_dead_letters/manual"]
    assert dlq_arguments(FORM, run[1], by="ana") == ["dlq", "replay", "flights", *run, "--dry-run", "--json"]
    filled = {**FORM, "reasons": ["NotJson", "WrongType"], "from": "2013-12-30T00:00:00Z", "dry-run": False}
    bounds = ["--reason", "NotJson", "--reason", "WrongType", "--from", "2013-12-30T00:00:00Z"]
    assert dlq_arguments(filled, run[1], by="ana") == ["dlq", "replay", "flights", *bounds, *run, "--json"]
    discard = {**filled, "action": "discard", "because": " a test "}
    said = ["--because", "a test", "--by", "ana, Airflow", "--yes"]
    assert dlq_arguments(discard, run[1], by="ana, Airflow") == ["dlq", "discard", "flights", *bounds, *said, "--json"]
    with pytest.raises(AirflowFailException, match="needs a reason"):
        dlq_arguments({**discard, "because": " "}, run[1], by="ana")


@pytest.mark.soak  # three runs of Airflow
def test_the_dead_letter_dag_counts_replays_and_discards(
    stream: Any, events: Any, dag_runner: Callable[..., Any]
) -> None:
    stream.produce([*events(range(10)), b'{"id": "11", "at": "2024-01-01T00:00:00Z"}', b"not json"])
    stream.catch_up()
    assert stream.ids() == list(range(10))
    path = stream.streams / "events.yaml"
    path.write_text(path.read_text().replace("note: string", "note: string, more: string"))
    stream.catch_up()
    airflow = dag_runner(stream.streams)

    dry = airflow.run("frazil_dead_letters", conf={"stream": "events"})
    assert dry["state"] == "success"
    replayed = airflow.run("frazil_dead_letters", conf={"stream": "events", "dry-run": False})
    assert replayed["state"] == "success"
    because = {"action": "discard", "because": "a test", "reasons": ["NotAnObject"]}
    discarded = airflow.run("frazil_dead_letters", conf={"stream": "events", "dry-run": False, **because})
    assert discarded["state"] == "success"
    dead_letters = stream.table("_dead_letters").scan().to_arrow().to_pylist()
    assert {bool(re.search("DAG run|, Airflow$", r["discarded_by"])) for r in dead_letters if r["discarded_by"]} == {
        True
    }
    assert {(r["error_class"], r["replays"], r["discard_reason"]) for r in dead_letters} == {
        ("TypeMismatch", 1, None),
        ("NotAnObject", 1, "a test"),
    }
