"""Foreign values in Airflow are skipped or reported, and never raise an error that a user cannot act on."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow.audits import dag as audits
from frazil.airflow.health import dag as health
from frazil.airflow.untrusted_values import (
    extra_text,
    parse_signals,
    read_sent_signals,
    stored_mapping,
    stored_names,
    stored_number,
)
from frazil.maintenance.alerts import AlertState, AlertStates

FOREIGN: list[Any] = [
    "text",
    "",
    True,
    False,
    -1,
    2**70,
    10**5000,
    1.5,
    [],
    [1],
    {},
    {"a": 1},
    [["k", "1"]],
    [[None, 1]],
]


class Store(dict[str, Any]):
    set = dict.__setitem__


@dataclass
class Event:
    extra: Any
    partition_key: str | None = "2013-12-30T05"


def test_only_an_event_with_data_of_its_own_key_counts_as_a_sent_signal(caplog: pytest.LogCaptureFixture) -> None:
    ours = Event({"2013-12-30T05": {"number": 7}, "2013-12-30T06": {"number": 8}})
    foreign = [Event(value) for value in (None, *FOREIGN)]
    foreign += [Event({"2013-12-30T05": value}) for value in (None, *FOREIGN)]
    foreign += [Event({"2013-12-30T05": {"number": value}}) for value in (None, *FOREIGN)]
    foreign += [Event(ours.extra, key) for key in (None, "", "2013-12-30", "x" * 100_000)]
    foreign += [Event({**ours.extra, "from_rest_api": True})]
    with caplog.at_level(logging.WARNING):
        assert read_sent_signals([*foreign, ours], "demo.made") == {("2013-12-30T05", 7)}
    assert f"{len(foreign)} events of the asset demo.made were not sent by frazil" in caplog.text
    assert len(caplog.text) < 2_000, "however huge they are"


def test_an_invalid_value_in_a_store_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    assert stored_number(Store(k=0), "k") == 0
    assert stored_number(Store(k=9), "k", limit=8) is None
    assert stored_names(Store(k=["a", 1, "b"]), "k") == ["a", "b"]
    assert caplog.text.count("ignoring") == 2
    for value in FOREIGN:
        store = Store(k=value)
        assert stored_number(store, "k") is None
        assert stored_names(store, "k") == []
        assert stored_mapping(store, "k") == (value if isinstance(value, dict) else {})
        assert parse_signals(value) == frozenset()
        assert extra_text({"k": value}, "k") == (value if value == "text" else None)
        assert extra_text(value, "k") is None
        assert AlertStates.from_json({"snapshots": value, "manifests": [1, True, None, 0, True]}).rules == {
            "manifests": AlertState(1, active=True)
        }


def test_an_invalid_xcom_fails_its_task_with_the_remedy() -> None:
    for value in (None, *FOREIGN):
        for task in (health.changed, health.alerts, health.resolved):
            with pytest.raises(AirflowFailException, match="Clear the task measure"):
                task(value)
        with pytest.raises(AirflowFailException, match="Clear the task confirm"):
            audits.report(value)
