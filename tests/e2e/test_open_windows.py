"""`commit.align: watermark` with a real writer, while Spark reads the table and expires its snapshots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def records(day: int, count: int = 8) -> list[bytes]:
    return [b'{"id": %d, "at": "2024-01-%02dT12:00:00Z"}' % (day * 100 + n, day) for n in range(count)]


@pytest.mark.rotates(3)
def test_each_day_is_published_whole_and_expiry_keeps_the_files_of_waiting_days(
    stream: Any, spark: Any, spark_home: Path, frazil: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(spark_home))  # the catalog that Spark has opened
    stream.name = "aligned"
    stream.declare("commit: {interval: 1s, align: watermark}\nlateness: 1h\n")
    stream.produce([*records(1), *records(2)], partitions=4)
    stream.catch_up()
    spark.sql(
        "CALL default.system.expire_snapshots(table => 'test.aligned', retain_last => 1, "
        "older_than => TIMESTAMP '2999-01-01 00:00:00')"
    )
    assert stream.ids() == list(range(100, 108))
    waiting = spark.sql("SELECT id FROM default.test.aligned VERSION AS OF 'frazil-open-aligned'").collect()
    assert sorted(row.id for row in waiting) == list(range(200, 208))
    assert frazil("audit", "aligned").returncode == 0

    stream.produce(records(4), partitions=4)
    stream.catch_up()
    assert stream.ids() == [*range(100, 108), *range(200, 208)]
