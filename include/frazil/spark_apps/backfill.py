"""Stages a backfill of one declared stream: `spark-submit backfill.py NAME --streams DIR --request JSON`.

The request has the same fields as the form in Airflow (DAG `frazil_backfill`). A restarted program continues where it
stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from frazil.backfill.request import parse_request
from frazil.extras import check_configuration
from frazil.host.process_log import exit_on_error, log_to_stderr
from frazil.spec.load import find_stream


def main() -> int:
    with exit_on_error():
        check_configuration()
    from pyspark.sql import SparkSession  # PyIceberg reads its configuration when imported

    from frazil.backfill.run import open_backfill
    from frazil.backfill.stage import stage
    from frazil.stream.spark_engine import SparkEngine

    parser = argparse.ArgumentParser(description="Stage a stream's Kafka records that are missing from its table.")
    parser.add_argument("name", help="the stream's name")
    parser.add_argument("--streams", type=Path, required=True, help="the folder of declared streams")
    parser.add_argument("--request", type=json.loads, required=True, help="the request, as JSON")
    arguments = parser.parse_args()
    log_to_stderr()
    os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    with exit_on_error():
        spec = find_stream(arguments.streams, arguments.name)
        with open_backfill(spec, parse_request({**arguments.request, "stream": arguments.name})) as backfill:
            session = SparkSession.builder.appName(f"frazil backfill {spec.name}").getOrCreate()
            try:
                with SparkEngine(spec, session) as engine:
                    stage(backfill, engine)
            finally:
                session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
