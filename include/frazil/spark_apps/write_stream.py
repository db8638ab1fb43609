"""The writer of one declared stream: `python write_stream.py NAME --streams DIR [--until-caught-up]`.

The supervisor's launcher or `frazil run` holds its lock. After SIGTERM it commits its current batch and ends with exit
code 0.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from frazil.extras import check_configuration, report_missing_extras
from frazil.host.process_log import exit_on_error
from frazil.signals import read_pins
from frazil.spark_apps import DRIVE_STREAM
from frazil.spec.last_valid import find_and_remember
from frazil.spec.load import check_other_streams


def main() -> int:
    parser = argparse.ArgumentParser(description="Write one declared stream into its Iceberg table.")
    parser.add_argument("name", help="the stream's name")
    parser.add_argument("--streams", type=Path, required=True, help="the folder of declared streams")
    parser.add_argument("--until-caught-up", action="store_true", help="end when records now in Kafka are committed")
    arguments = parser.parse_args()
    with exit_on_error(), report_missing_extras():
        check_configuration()
        spec = find_and_remember(arguments.streams, arguments.name)
        check_other_streams(arguments.streams, spec)
        if spec.resources.driver_in_cluster:
            from frazil.remote.agent import run_agent  # PyIceberg reads its configuration when imported

            return run_agent(spec, arguments.streams, program=DRIVE_STREAM, until_caught_up=arguments.until_caught_up)
        from frazil.stream.main import run_writer
    return run_writer(spec, until_caught_up=arguments.until_caught_up, read_pins=read_pins)


if __name__ == "__main__":
    sys.exit(main())
