"""Commands start fast: slow modules are imported only by commands that need them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.spec.load import load_stream
from tests.made_batches import MadeStream

pytestmark = pytest.mark.processes

STREAM = """
name: made
source: {topics: [made], bootstrap-servers: "127.0.0.1:1"}
table: demo.made
schema: {at: timestamptz}
event-time: at
complete: hour
"""
HEAVY = {
    "airflow",
    "duckdb",
    "great_expectations",
    "numba",
    "pandas",
    "pyspark",
    "requests",
    "scipy",
    "matplotlib",
    "IPython",
}

# One process for all commands: each import would be paid once for each of them.
CALLS = """
import json, sys
from frazil.cli.main import main

heavy, told = set(json.loads(sys.argv[1])), {}
for call in json.loads(sys.argv[2]):
    sys.argv = ["frazil", *call]
    try:
        main()
    except SystemExit as end:
        told[" ".join(call)] = [end.code, sorted(m for m in heavy if sys.modules.get(m))]
import gc
print(json.dumps([told, gc.isenabled()]))
"""

COMMANDS = [
    ["validate"],
    ["status"],
    ["status", "made"],
    ["health", "demo.made", "--deep"],
    ["pause", "made"],
    ["resume", "made"],
    ["restart", "made"],
    ["partitions", "demo.made"],
    ["orphans", "demo.made"],
    ["maintain", "demo.made", "--dry-run"],
    ["backfill", "made", "--status"],
    ["audit", "made"],
]


def test_read_only_commands_import_no_slow_module(frazil_home: Path, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "made.yaml").write_text(STREAM)
    MadeStream(load_stream(tmp_path / "made.yaml"), 2_000_000_000_000, partitions=1).land({0: (0, 25)})
    commands = [[*call, "--streams", str(tmp_path)] for call in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", CALLS, json.dumps(sorted(HEAVY)), json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    reported, collects = json.loads(done.stdout.splitlines()[-1])
    assert reported == {" ".join(call): [0, []] for call in commands}, done.stderr
    assert "cannot be read" not in done.stdout
    assert collects


def test_pyarrow_does_without_pandas_until_spark_needs_it() -> None:
    program = (
        "import sys\n"
        "from frazil.fast_imports import allow_pandas, begin_fast_imports\n"
        "begin_fast_imports()\n"
        "import pyarrow.dataset\n"
        "assert 'pandas' not in sys.modules\n"
        "allow_pandas()\n"
        "import pandas\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_driver_leaves_imports_that_only_staging_needs_to_its_workers() -> None:
    program = (
        "import sys\n"
        "import frazil.stream.main, frazil.stream.spark_engine, frazil.stream.hosting, frazil.stream.writer\n"
        "print(sorted({'frazil.ingest.stage', 'numba', 'requests'} & {*sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
