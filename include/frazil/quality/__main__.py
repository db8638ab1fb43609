"""Runs the gate as a process: requests on stdin, one per line; results, or an error, on stdout."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import warnings
from datetime import UTC, datetime

from frazil.errors import FrazilError
from frazil.extras import report_missing_extras, require_module
from frazil.quality.gate import GateRequest


def main() -> int:
    """Write a GateResult per request, or an error; return the exit code. The first argument is the timeout (s)."""
    # The parent kills this process at the timeout; if the parent has died, the alarm ends this process.
    signal.alarm(math.ceil(float(sys.argv[1])))
    # Libraries and the JVM print to stdout, which is therefore redirected: only results go to the real stdout.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    # Great Expectations reads this when it is imported.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    requests = [GateRequest.from_json(line) for line in sys.stdin.read().splitlines()]
    with answer:
        try:
            require_module("great_expectations")  # before pandas, which other extras install too
            with report_missing_extras():
                from frazil.quality.evaluate import evaluate  # after the settings above

                for request in requests:
                    answer.write(f"{evaluate(request, now=datetime.now(UTC)).to_json()}\n")
        except FrazilError as error:
            answer.write(json.dumps({"error": type(error).__name__, "message": str(error)}))
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
