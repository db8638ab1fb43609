"""References to values that must not be in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import SpecError
from frazil.spec.load import load_stream
from frazil.spec.references import (
    executor_kafka_properties,
    find_connections,
    find_reference_problem,
    resolve,
    resolve_kafka_properties,
    resolve_properties,
)

JSON_CONNECTION = json.dumps(
    {"conn_type": "kafka", "host": "k", "port": 9093, "login": "me", "password": "p@s/s", "extra": {"ca": "/x", "n": 5}}
)
URI_CONNECTION = "kafka://me:p%40s%2Fs@k:9093/db?ca=%2Fx&n=5"


def test_an_environment_variable_reference_is_resolved() -> None:
    assert resolve("${env:HOST}:${env:PORT:-9092}", {"HOST": "k"}) == "k:9092"
    assert resolve("${env:PORT:-9092}", {"PORT": ""}) == "9092"
    assert resolve("${env:X:-}", {}) == ""


def test_a_missing_variable_is_reported() -> None:
    with pytest.raises(SpecError, match="SECRET is not set"):
        resolve("${env:SECRET}", {"OTHER": "x"})


def test_an_empty_variable_is_treated_as_unset() -> None:
    with pytest.raises(SpecError, match="SECRET is not set"):
        resolve("${env:SECRET}", {"SECRET": ""})
    with pytest.raises(SpecError, match="the Airflow connection 'k' is missing"):
        resolve("${airflow:k.host}", {"AIRFLOW_CONN_K": ""})


@given(st.text().filter(lambda text: "${" not in text))
def test_text_without_references_passes_through(text: str) -> None:
    assert resolve(text, {}) == text


@given(st.text())
def test_references_inside_a_resolved_value_are_not_resolved(value: str) -> None:
    assert resolve("${env:X:-none}", {"X": value}) == (value or "none")


@pytest.mark.parametrize("connection", [JSON_CONNECTION, URI_CONNECTION])
@pytest.mark.parametrize(
    ("field", "value"),
    [("host", "k"), ("port", "9093"), ("login", "me"), ("password", "p@s/s"), ("ca", "/x"), ("n", "5")],
)
def test_a_field_of_an_airflow_connection_is_read_from_a_uri_or_json(connection: str, field: str, value: str) -> None:
    assert resolve(f"${{airflow:my_kafka.{field}}}", {"AIRFLOW_CONN_MY_KAFKA": connection}) == value


def test_uri_options_can_be_one_json_value() -> None:
    uri = "kafka://k/?__extra__=%7B%22a.b%22%3A+%7B%22c%22%3A+1%7D%2C+%22d%22%3A+%22e%22%7D"
    assert resolve("${airflow:k.d}", {"AIRFLOW_CONN_K": uri}) == "e"


def test_a_missing_connection_field_is_reported_without_the_values_of_others() -> None:
    with pytest.raises(SpecError, match="no 'user'; it has: ca, host, login, n, password, port") as refused:
        resolve("${airflow:k.user}", {"AIRFLOW_CONN_K": JSON_CONNECTION})
    assert "p@s/s" not in str(refused.value)
    with pytest.raises(SpecError, match="AIRFLOW_CONN_K"):
        resolve("${airflow:k.host}", {})


@pytest.mark.parametrize("broken", ["{hunter2", "hunter2", '{"extra": "hunter2"}', '{"extra": [1]}', "k://h:hunter2/"])
def test_a_broken_connection_is_reported_without_the_text_of_its_error(broken: str) -> None:
    with pytest.raises(
        SpecError, match="AIRFLOW_CONN_K is not an Airflow connection; write it as JSON or as a URI"
    ) as refused:
        resolve("${airflow:k.host}", {"AIRFLOW_CONN_K": broken})
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("text", ["${FOO}", "${env:}", "${env:1x}", "${airflow:conn}", "${vault:x}", "a ${} b"])
def test_an_unreadable_reference_is_reported_with_the_correct_syntax(text: str) -> None:
    assert "${env:NAME}" in (find_reference_problem(text) or "")
    with pytest.raises(SpecError, match="env:NAME"):
        resolve(text, {})


def test_kafka_properties_are_the_brokers_and_the_declared_properties(declare: Callable[..., Path]) -> None:
    source = {
        "bootstrap-servers": "${env:KAFKA:-127.0.0.1:9092}",
        "topics": "x",
        "properties": {"sasl.username": "${airflow:k.login}", "sasl.password": "${airflow:k.password}", "debug": "all"},
    }
    spec = load_stream(declare(source=source, resources={"spark": {"spark.x": "${airflow:other.host}"}}))
    assert find_connections(spec) == {"k", "other"}
    assert resolve_kafka_properties(spec, {"AIRFLOW_CONN_K": JSON_CONNECTION}) == {
        "bootstrap.servers": "127.0.0.1:9092",
        "sasl.username": "me",
        "sasl.password": "p@s/s",
        "debug": "all",
    }
    assert executor_kafka_properties(spec, {"AIRFLOW_CONN_K": JSON_CONNECTION, "KAFKA": "broker:1"}) == {
        "bootstrap.servers": "broker:1",
        "sasl.username": "${airflow:k.login}",
        "sasl.password": "${airflow:k.password}",
        "debug": "all",
    }
    with pytest.raises(SpecError, match=r"stream flights: source: sasl\.username: the Airflow connection 'k'"):
        resolve_kafka_properties(spec, {})


def test_an_error_while_resolving_properties_names_the_key() -> None:
    with pytest.raises(SpecError, match=r"a\.b: the environment variable X"):
        resolve_properties({"a.b": "${env:X}"}, {})
