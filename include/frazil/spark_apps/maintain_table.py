"""Maintains tables of declared streams: `spark-submit maintain_table.py TABLE [TABLE…] --streams DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from frazil.extras import check_configuration
from frazil.host.process_log import exit_on_error
from frazil.maintenance.due import Action


def main() -> int:
    with exit_on_error():
        check_configuration()
    from frazil.maintenance.run import run_maintenance  # PyIceberg reads its configuration when imported

    parser = argparse.ArgumentParser(description="Compact tables, rewrite their manifests and expire their snapshots.")
    parser.add_argument("tables", nargs="+", metavar="TABLE", help="a table, as in the stream's file: demo.flights")
    parser.add_argument("--streams", type=Path, required=True, help="the folder of declared streams")
    parser.add_argument("--actions", default=",".join(Action), help="the actions to run; by default all: %(default)s")
    parser.add_argument("--report", type=Path, help="a file for the outcomes, as a JSON list")
    arguments = parser.parse_args()
    try:
        actions = {Action(name) for name in arguments.actions.split(",")}
    except ValueError as error:
        parser.error(f"--actions: {error}")
    return run_maintenance(arguments.tables, streams=arguments.streams, actions=actions, report=arguments.report)


if __name__ == "__main__":
    sys.exit(main())
