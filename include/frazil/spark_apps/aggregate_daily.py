"""Computes one day of a declared aggregation: `spark-submit aggregate_daily.py NAME --aggregations DIR --day DAY`.

Airflow passes the snapshot that the DAG's first task chose. If no snapshot is passed, the program reads the day's
signals.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from frazil.extras import check_configuration
from frazil.host.process_log import exit_on_error


def main() -> int:
    with exit_on_error():
        check_configuration()
    from frazil.aggregate.day_input import NO_REVISIONS  # PyIceberg reads its configuration when imported
    from frazil.aggregate.run import run_aggregation

    parser = argparse.ArgumentParser(description="Aggregate one UTC day of a table into the same day of another table.")
    parser.add_argument("name", help="the aggregation's name")
    parser.add_argument("--aggregations", type=Path, required=True, help="the folder of declared aggregations")
    parser.add_argument("--day", required=True, help="YYYY-MM-DD, in UTC")
    parser.add_argument("--snapshot-id", type=int, help="a source snapshot; by default the signals' newest")
    parser.add_argument("--revisions", default=NO_REVISIONS, help="the revisions of the day's windows at that snapshot")
    arguments = parser.parse_args()
    return run_aggregation(
        arguments.name,
        folder=arguments.aggregations,
        day=arguments.day,
        snapshot_id=arguments.snapshot_id,
        revisions=arguments.revisions,
    )


if __name__ == "__main__":
    sys.exit(main())
