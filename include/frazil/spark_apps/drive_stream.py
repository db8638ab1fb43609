"""The driver of one stream in a cluster: `drive_stream.py NAME --catalog C --table T --driver ID`.

The stream's agent submits this program, and an order next to the table's journals tells it what to do (see
`frazil.remote`).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from frazil.extras import report_missing_extras
from frazil.host.process_log import exit_on_error
from frazil.remote.driver_environment import remove_catalog_config, set_up_home


def main() -> int:
    parser = argparse.ArgumentParser(description="Write one stream as a driver in a cluster.")
    parser.add_argument("name", help="the stream's name")
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--driver", required=True, help="the id of the order that this driver fulfils")
    arguments = parser.parse_args()
    set_up_home(os.environ, Path.cwd())
    try:
        with exit_on_error(), report_missing_extras():
            from frazil.remote.driver import run_driver  # PyIceberg reads its configuration when imported

            return run_driver(arguments.name, catalog=arguments.catalog, table=arguments.table, driver=arguments.driver)
    finally:
        remove_catalog_config(os.environ)


if __name__ == "__main__":
    sys.exit(main())
