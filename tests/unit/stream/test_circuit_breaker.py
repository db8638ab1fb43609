"""A batch is committed depending only on its new dead letters, its rows and the declaration."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from frazil.errors import CircuitOpen
from frazil.ingest.contract import Reject, Rejects
from frazil.spec.model import CircuitBreaker
from frazil.stream.circuit_breaker import check_circuit_breaker, circuit_open_message, reason_to_open


def rejects(**counts: int) -> Rejects:
    """Rejected records of one partition, the first of each class as its samples."""
    samples = tuple(Reject("t", 0, 10 * n, name, f"why {name}") for n, name in enumerate(counts))
    return Rejects(counts, samples[:1], samples)


@pytest.mark.parametrize("share", [0, 1, 33, 50, 99])
@pytest.mark.parametrize("at_least", [1, 7, 12])
def test_the_circuit_breaker_opens_exactly_above_its_share_of_enough_records(share: int, at_least: int):
    circuit = CircuitBreaker(share=share, at_least=at_least)
    for records in range(12):
        for rejected in range(12):
            total = records + rejected
            above = total >= at_least and Fraction(rejected, max(total, 1)) > Fraction(share, 100)
            reason = reason_to_open(rejects(Bad=rejected), records=records, circuit=circuit)
            assert (reason is not None) == above
            assert reason is None or f"{rejected} of {total} record" in reason


def test_by_default_the_circuit_breaker_opens_above_half_of_a_thousand_records():
    circuit = CircuitBreaker()
    assert reason_to_open(rejects(Bad=999), records=0, circuit=circuit) is None
    assert reason_to_open(rejects(Bad=500), records=500, circuit=circuit) is None
    assert reason_to_open(rejects(Bad=501), records=499, circuit=circuit) is not None


def test_the_circuit_open_message_has_reasons_counts_samples_the_previous_batch_and_remedies():
    found = Rejects(
        {"MissingField": 1100, "NotJson": 100},
        tuple(Reject("t", p, p, "NotJson", "x") for p in range(7)),
        (
            Reject("t", 0, 5, "NotJson", "it is no object"),
            *(Reject("t", 1, o, "MissingField", f"no id at {o}.") for o in (6, 7, 8)),
        ),
    )
    reason = reason_to_open(found, records=100, circuit=CircuitBreaker())
    assert reason is not None
    before: Any = SimpleNamespace(records=999, rejected=1)
    assert circuit_open_message("rides", reason, found, last_batch=before) == (
        "stream 'rides' stops before a commit: 1,200 of 1,300 records (92.3 %) would be dead letters, more than 50 % "
        "(dead-letters.circuit). In the previous batch, the share was 0.1 %. Reasons: MissingField 1,100, NotJson 100. "
        "If the declaration is wrong, correct it: the batch is read again. If the producer was wrong: `frazil resume "
        "rides --accept` stores its records up to now as dead letters; `frazil reset rides --to latest` "
        "skips the records that Kafka has now. "
        "First at t[0]@0, t[1]@1, t[2]@2, t[3]@3, t[4]@4 and in 2 more partitions. "
        "t[1]@6 MissingField: no id at 6 | t[0]@5 NotJson: it is no object | t[1]@7 MissingField: no id at 7"
    )


def test_the_circuit_open_message_lists_every_given_location():
    five = Rejects({"NotJson": 5}, tuple(Reject("t", p, 0, "NotJson", "x") for p in range(5)), ())
    text = circuit_open_message("rides", "reason", five, last_batch=None)
    assert "First at t[0]@0, t[1]@0, t[2]@0, t[3]@0, t[4]@0. " in text


def test_a_stream_may_disable_the_circuit_breaker():
    journals: Any = SimpleNamespace(records=lambda **_: iter(()))

    def spec(circuit: Any) -> Any:
        return SimpleNamespace(name="rides", dead_letters=SimpleNamespace(circuit=circuit))

    check_circuit_breaker(spec("off"), rejects(Bad=5000), records=0, journals=journals)
    with pytest.raises(
        CircuitOpen, match=r"5,000 of 5,000 records \(100\.0 %\).*Reasons: Bad 5,000\..*First at t\[0\]@0"
    ):
        check_circuit_breaker(spec(CircuitBreaker()), rejects(Bad=5000), records=0, journals=journals)


def test_the_previous_batch_in_the_message_is_the_last_one_with_records():
    empty, before = SimpleNamespace(records=0, rejected=0), SimpleNamespace(records=7, rejected=7)
    journals: Any = SimpleNamespace(records=lambda **_: iter((empty, before)))
    spec: Any = SimpleNamespace(name="rides", dead_letters=SimpleNamespace(circuit=CircuitBreaker()))
    with pytest.raises(CircuitOpen, match=r"In the previous batch, the share was 50\.0 %"):
        check_circuit_breaker(spec, rejects(Bad=5000), records=0, journals=journals)
