"""The writers of several streams in one process: `python write_application.py NAME --streams DIR [--until-caught-up]`.

Locks, SIGTERM and exit codes are as in `write_stream.py`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from frazil.extras import check_configuration, report_missing_extras
from frazil.host.process_log import exit_on_error


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the declared streams of one application into their tables.")
    parser.add_argument("name", help="the application's name")
    parser.add_argument("--streams", type=Path, required=True, help="the folder of declared streams")
    parser.add_argument("--until-caught-up", action="store_true", help="end when records now in Kafka are committed")
    arguments = parser.parse_args()
    with exit_on_error(), report_missing_extras():
        check_configuration()
        from frazil.application.main import run_application  # as in write_stream.py
    return run_application(arguments.name, arguments.streams, until_caught_up=arguments.until_caught_up)


if __name__ == "__main__":
    sys.exit(main())
