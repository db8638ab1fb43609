"""The program for `spark-submit`: reads single days and the whole table. Prints each read's seconds as JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from pyspark.sql import SparkSession


def main(arguments: Sequence[str]) -> None:
    table, days, repeats = arguments[0], int(arguments[1]), int(arguments[2])
    spark = SparkSession.builder.getOrCreate()

    def seconds(query: str) -> float:
        began = time.monotonic()
        spark.sql(query).collect()
        return time.monotonic() - began

    whole = f"SELECT count(*), sum(amount), count(DISTINCT state), max(note) FROM {table}"
    of_day = whole + " WHERE day = date_add(DATE '2026-01-01', {})"
    seconds(whole)  # warm
    found = {
        "days": [seconds(of_day.format(day * 7 % days)) for day in range(repeats * 8)],
        "whole": [seconds(whole) for _ in range(repeats)],
    }
    print("READ " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
