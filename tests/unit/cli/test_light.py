"""What a command's process leaves out while it imports."""

from __future__ import annotations

import subprocess
import sys


def test_pyarrow_does_without_pandas_until_spark_needs_it() -> None:
    program = (
        "import sys\n"
        "from frazil.cli.light import allow_pandas, begin_light\n"
        "begin_light()\n"
        "import pyarrow.dataset\n"
        "assert 'pandas' not in sys.modules\n"
        "allow_pandas()\n"
        "import pandas\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
