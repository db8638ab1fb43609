"""Errors for a Kafka client that cannot be created, and for a missing topic."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from frazil.errors import NO_RESTART_EXIT_CODES, AccessDenied, KafkaUnavailable, SpecError, TopicMissing, brokers_remedy
from frazil.ingest.contract import OffsetRange
from frazil.ingest.kafka_columns import ColumnReader
from frazil.kafka.admin import KafkaAdmin
from frazil.kafka.client import property_problems
from frazil.spec.property_rules import JAVA_ONLY, SET_BY_FRAZIL
from frazil.spec.source import TopicPattern

UNKNOWN = {"bootstrap.servers": "127.0.0.1:1", "no.such": "x"}


def test_a_property_that_librdkafka_does_not_know_is_a_mistake_of_the_declaration() -> None:
    with pytest.raises(SpecError, match=r"source\.properties: .*no\.such"):
        KafkaAdmin(UNKNOWN, ["t"])
    with pytest.raises(SpecError, match=r"source\.properties: .*no\.such"):
        ColumnReader(UNKNOWN, [OffsetRange("t", 0, 0, 1)])


def test_a_missing_topic_is_distinguished_from_unavailable_brokers_and_is_awaited() -> None:
    answer = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, ["t"]) as offsets:
        found = offsets._as_frazil_error(answer, "describing")
    assert isinstance(found, TopicMissing)
    assert (found.exit_code, found.restartable) == (24, True)
    assert found.exit_code not in NO_RESTART_EXIT_CODES


def answer(error: int | None) -> Future[str]:
    """Return a client's answer about one topic."""
    future: Future[str] = Future()
    future.set_exception(KafkaException(KafkaError(error))) if error is not None else future.set_result("there")
    return future


def test_only_the_missing_topics_are_reported_and_all_of_them() -> None:
    missing = KafkaError.UNKNOWN_TOPIC_OR_PART
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, ["a", "b", "c"]) as offsets:
        with pytest.raises(TopicMissing, match=r"has no topic a, c\. Create it"):
            offsets._descriptions({"c": answer(missing), "b": answer(None), "a": answer(missing)})
        with pytest.raises(KafkaException):
            offsets._descriptions({"a": answer(missing), "b": answer(KafkaError._TRANSPORT)})
        assert offsets._descriptions({"b": answer(None)}) == {"b": "there"}


def test_a_hidden_topic_is_distinguished_from_a_deleted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted, hidden = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED
    found = {"a": answer(hidden), "b": answer(deleted), "c": answer(None), "d": answer(hidden)}
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, TopicPattern("."), stream="s") as offsets:
        monkeypatch.setattr(offsets, "_describe_topics", lambda topics: {name: found[name] for name in topics})
        offsets.check_not_hidden(["b", "c"])
        with pytest.raises(AccessDenied, match=r"stream s: .*that it has read: a, d\. Grant Describe and Read"):
            offsets.check_not_hidden(["a", "b", "c", "d"])
        found["b"] = answer(KafkaError._TRANSPORT)
        with pytest.raises(KafkaUnavailable):
            offsets.check_not_hidden(["b"])
        missing = offsets._as_frazil_error(KafkaException(KafkaError(deleted)), "listing offsets of")
    assert isinstance(missing, TopicMissing)
    assert "source.topics" not in str(missing)


def test_a_missing_response_is_reported_with_the_time_waited() -> None:
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, ["t"], timeout_s=2) as offsets:
        found = offsets._as_frazil_error(TimeoutError(), "describing")
    assert "Kafka at 127.0.0.1:1 did not answer within 2 s" in found.reason
    assert found.remedy == brokers_remedy()


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT])
def test_a_timeout_code_of_librdkafka_gives_the_same_message(code: int) -> None:
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, ["t"], timeout_s=2) as offsets:
        found = offsets._as_frazil_error(KafkaException(KafkaError(code)), "describing")
    assert "Kafka at 127.0.0.1:1 did not answer within 2 s" in found.reason
    assert found.remedy == brokers_remedy()


def test_a_kafka_error_is_quoted_with_its_description() -> None:
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, ["t"]) as offsets:
        found = offsets._as_frazil_error(KafkaException(KafkaError(KafkaError._TRANSPORT)), "describing")
    assert "got no answer: Local: Broker transport failure" in found.reason
    assert found.remedy == brokers_remedy()


def test_librdkafka_reports_problems_of_properties_that_can_be_checked_here() -> None:
    declared = {"fetch.min.bytes": "x", "queued.min.messages": "${env:X}", "sasl.password": "y", "no.such": "1"}
    assert property_problems(declared).keys() == {"fetch.min.bytes", "no.such"}
    assert property_problems({"fetch.min.bytes": "1", "security.protocol": "SSL", "debug": "all"}) == {}


@pytest.mark.parametrize("key", sorted(JAVA_ONLY))
def test_properties_documented_as_java_only_are_unknown_to_librdkafka(key: str) -> None:
    assert property_problems({key: "1"})


@pytest.mark.parametrize("key", sorted(SET_BY_FRAZIL.keys() - {"bootstrap.servers"}))
def test_librdkafka_knows_every_property_that_frazil_sets(key: str) -> None:
    assert not property_problems({key: "x"}).get(key, "").startswith("No such")


def test_a_timestamp_before_1970_is_not_sent_to_kafka_as_a_special_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's -1 and -2, as timestamps, mean the newest and the oldest record."""
    requested: list[Any] = []
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, ["t"]) as offsets:
        monkeypatch.setattr(
            offsets, "_list_committed", lambda tps, spec: requested.append(spec) or dict.fromkeys(tps, 0)
        )
        for ms in (-1, -2, -62_135_596_800_000, 1):
            offsets.offsets_at(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms), [("t", 0)])
    assert [spec._value for spec in requested] == [0, 0, 0, 1]
