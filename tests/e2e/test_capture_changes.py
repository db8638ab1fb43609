"""Debezium's events through a broker: the table equals the source's, also after events that are sent again."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from confluent_kafka import Producer

DECLARED = """\
name: events
source:
  topics: [{topic}]
  bootstrap-servers: '{bootstrap}'
  format: {{type: json, envelope: {{metadata: {{place: position, at: source.ts_ms}}}}}}
table: test.events
schema:
  id: long not null
  name: string
  note: string
  place: string
  at: {{type: timestamptz, unit: ms}}
event-time: at
mode: upsert
key: id
order-by: place
commit: {{interval: 1s}}
"""
UNAVAILABLE = "__debezium_unavailable_value"


class Database:
    """A table of rows with a log, and a connector that sends the log's events to Kafka."""

    def __init__(self, stream: Any, seed: int) -> None:
        self.stream, self.draw = stream, random.Random(seed)
        self.rows: dict[int, dict[str, Any]] = {}
        self.log: list[tuple[int, dict[str, Any] | None]] = []

    def change(self, times: int) -> None:
        for _ in range(times):
            key = self.draw.randrange(30)
            row = self.rows.get(key)
            if row is None:
                self.rows[key] = {"id": key, "name": self.draw.choice("ab"), "note": "long text" * 3}
                self._write(key, "c", after=self.rows[key])
            elif self.draw.random() < 0.3:
                del self.rows[key]
                self._write(key, "d", before={"id": key, "name": None, "note": None})
                self.log.append((key, None))
            else:
                changed = {"name": self.draw.choice("cdef")} if self.draw.random() < 0.7 else {"note": "another"}
                self.rows[key] = {**row, **changed}
                told = {"note": UNAVAILABLE} if "name" in changed else {}
                self._write(key, "u", before={"id": key}, after={**self.rows[key], **told})

    def _write(self, key: int, op: str, **states: Any) -> None:
        lsn = len(self.log) + 1
        source = {"connector": "postgresql", "lsn": lsn, "ts_ms": 1_767_225_600_000 + lsn}
        self.log.append((key, {"before": None, "after": None, "op": op, "source": source, **states}))

    def send(self, *, since: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "linger.ms": 5})
        for key, event in self.log[since:]:
            value = None if event is None else json.dumps(event)
            producer.produce(self.stream.topic, value, key=json.dumps({"id": key}), partition=key % 4)
        assert producer.flush(30) == 0

    def check(self) -> None:
        self.stream.catch_up()
        found = self.stream.table().scan(selected_fields=("id", "name", "note")).to_arrow().to_pylist()
        assert sorted(found, key=lambda row: row["id"]) == [self.rows[key] for key in sorted(self.rows)]
        assert self.stream.table("_dead_letters").scan().to_arrow().num_rows == 0


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_the_table_equals_the_source(stream: Any, seed: int) -> None:
    text = DECLARED.format(topic=stream.topic, bootstrap=stream.bootstrap)
    (stream.streams / "events.yaml").write_text(text)
    database = Database(stream, seed)
    sent = 0
    for _ in range(4):
        database.change(60)
        # After a crash, a connector sends again what it had not noted as sent: here all since the round before.
        database.send(since=max(0, sent))
        if database.draw.random() < 0.5:
            sent = len(database.log)
        database.check()
