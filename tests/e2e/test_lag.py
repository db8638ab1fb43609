"""A stream's lag when no writer reports it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from frazil.commit.open_streams import open_kafka
from frazil.dev.kafka import EmbeddedKafka
from frazil.maintenance.measure import LagQuery, measure
from frazil.maintenance.tables import find_maintained
from frazil.table.catalogs import load_catalog
from tests.unit.maintenance.day_by_day import land, made_stream


def test_kafka_is_queried_for_the_lag_where_the_lag_decides(
    kafka: EmbeddedKafka,
    topic: Callable[[], str],
    frazil_home: Path,  # noqa: ARG001
    tmp_path: Path,
):
    made = made_stream(tmp_path)
    changed = {"bootstrap_servers": kafka.bootstrap, "topics": (topic(),)}
    made.spec = made.spec.model_copy(update={"source": made.spec.source.model_copy(update=changed)})
    with open_kafka(made.spec) as source:
        made.known = source.describe().identity
    land(made, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(7):
        producer.produce(made.topic, b"{}")
    assert producer.flush(30) == 0

    def lag(*, after_ms: int, lag_query: LagQuery = LagQuery.NEVER) -> int | None:
        maintained = find_maintained([made.spec], "demo.made")
        found = measure(load_catalog(None), maintained, now_ms=made.now_ms + after_ms, lag_query=lag_query)
        assert found is not None
        return found.streams[0].lag

    assert lag(after_ms=16 * 60_000) is None
    assert lag(after_ms=60_000, lag_query=LagQuery.FOR_ALERTS) is None
    assert lag(after_ms=16 * 60_000, lag_query=LagQuery.FOR_ALERTS) == 5
    assert lag(after_ms=60_000, lag_query=LagQuery.ALWAYS) == 5
