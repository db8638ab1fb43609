"""`python -m demo [--exit] [--catalog NAME] [--spark NAME] …`: what `make demo` runs."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import get_args

from demo.interrupt import Interrupted, Interrupts, only_demo
from demo.parts import DemoCatalog, DemoParts, DemoSpark, require_free_ports
from demo.run import STREAM, Demo, checkout, report
from demo.screen import Screen
from frazil.errors import EnvironmentUnusable, FrazilError
from frazil.home import home
from frazil.spark.java import require_java
from tests.kubernetes.node import what_is_missing

INTERRUPTED = 130
"""The shell's code for a command that Ctrl-C ended."""


def main() -> int:
    arguments = _arguments()
    # Libraries' logs do not belong on the demo's screen.
    logging.getLogger().addHandler(logging.NullHandler())
    screen, interrupts = Screen(sys.stdout), Interrupts()
    try:
        require_java()
        if arguments.spark == "kubernetes" and (missing := what_is_missing()):
            raise EnvironmentUnusable(missing)
        with only_demo(home() / "demo.lock"):
            return _run(arguments, screen=screen, interrupts=interrupts)
    except FrazilError as error:
        screen.end_line()
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except Interrupted:
        return INTERRUPTED


def _run(arguments: argparse.Namespace, *, screen: Screen, interrupts: Interrupts) -> int:
    """Run the demo in its home; whatever happens, all its processes have ended when this returns."""
    parts = DemoParts(
        home() / "demo",
        checkout(),
        stream=STREAM,
        catalog=arguments.catalog,
        spark=arguments.spark,
        kafka_port=arguments.kafka_port,
        airflow_port=arguments.airflow_port,
    )
    code = INTERRUPTED
    try:
        parts.end()
        require_free_ports(arguments.kafka_port, arguments.airflow_port)
        parts.make_home()
        parts.enter_home()
        outcome = Demo(parts, screen).run()
        code = 0 if outcome.right else 1
        screen.say(report(outcome, parts))
        if not arguments.exit:
            screen.say("\nAll of it keeps running. Ctrl-C ends it.")
            while True:
                time.sleep(60)
    except Interrupted:
        pass
    finally:
        interrupts.ignore()
        screen.say("ending Airflow, the writer and the servers …")
        parts.end()
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description="Real flights from Kafka into Iceberg.")
    parser.add_argument("--exit", action="store_true", help="end by itself; exit code 0 if everything is right")
    parser.add_argument(
        "--catalog",
        choices=get_args(DemoCatalog),
        default="embedded",
        help="CATALOG of make: embedded (SQLite and a folder), rest (SeaweedFS with its S3), or postgres (with S3)",
    )
    parser.add_argument(
        "--spark",
        choices=get_args(DemoSpark),
        default="local",
        help="SPARK of make: local, cluster (standalone), or kubernetes (with the default CATALOG)",
    )
    parser.add_argument("--kafka-port", type=int, default=9092, help="KAFKA_PORT of make; 9092")
    parser.add_argument("--airflow-port", type=int, default=8080, help="AIRFLOW_PORT of make; 8080")
    arguments = parser.parse_args()
    if arguments.spark == "kubernetes" and arguments.catalog != "embedded":
        parser.error(f"pods cannot connect to the servers of CATALOG={arguments.catalog}: leave out CATALOG or SPARK")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
