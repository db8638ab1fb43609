"""The gate's process: requests on standard input, a line each; results, or an error, on standard output, no more."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import warnings
from datetime import UTC, datetime

from frazil.errors import FrazilError
from frazil.extras import extras_named
from frazil.quality.gate import GateRequest


def main() -> int:
    """0 with a GateResult a line, or an error's exit code with its name and message."""
    # The parent kills this process at its timeout; if the parent died first, the alarm does.
    signal.alarm(math.ceil(float(sys.argv[1])))
    # Libraries, and the JVM, print where they like: the answer alone goes to the real output.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    # Read when Great Expectations is imported.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    requests = [GateRequest.from_json(line) for line in sys.stdin.read().splitlines()]
    with answer:
        try:
            with extras_named():
                from frazil.quality.judge import judge  # noqa: PLC0415 - after the switches above

                for request in requests:
                    answer.write(f"{judge(request, now=datetime.now(UTC)).to_json()}\n")
        except FrazilError as error:
            answer.write(json.dumps({"error": type(error).__name__, "message": str(error)}))
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
