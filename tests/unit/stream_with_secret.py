"""A stream whose Kafka password is a reference, for tests of what is sent to executors."""

from __future__ import annotations

from frazil.spec.model import StreamSpec

SPEC = StreamSpec.model_validate(
    {
        "name": "flights",
        "source": {
            "bootstrap-servers": "127.0.0.1:1",
            "topics": "flights",
            "properties": {"sasl.password": "${env:KAFKA_PASSWORD}"},
        },
        "table": "demo.flights",
        "schema": {"at": "timestamptz", "n": "int"},
        "event-time": "at",
    }
)
