"""Runs the writer's main program in this process, without Spark. Only the engine differs from a user's writer."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
MAIN = CHECKOUT / "spark_apps" / "write_stream.py"


def main(*, without_jvm: bool = True, program: Path = MAIN) -> None:
    """Run the writer, or a shared application's program, with this process's arguments."""
    from tests.no_sync import write_without_sync  # run as a program, it finds `tests` only now

    write_without_sync()
    if without_jvm:
        from frazil.stream import spark_engine  # a writer imports it as late
        from tests.in_process_engine import InProcessEngine

        spark_engine.SparkEngine = lambda *_: InProcessEngine()  # type: ignore[assignment,misc]
    sys.argv[0] = str(program)
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    main()
