"""Converting values to declared types."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RACE = """
import sys, threading, time
from dataclasses import dataclass
from frazil import typed_json

describing = threading.Event()

def slow():
    describing.set()
    time.sleep(0.2)
    return int

@dataclass
class Inner:
    number: "slow()"

@dataclass
class Outer:
    name: str
    inner: Inner

def use():
    found = typed_json.convert({"name": "a", "inner": {"number": 1}}, Outer)
    sys.stdout.write(f"{found.name} {found.inner.number}\\n")

thread = threading.Thread(target=use)
thread.start()
describing.wait()
use()
thread.join()
"""


@pytest.mark.processes
def test_two_threads_may_use_a_type_for_the_first_time_at_once():
    ended = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "a 1\na 1\n"), ended.stderr


def test_all_modules_convert_to_declared_types_through_one_module():
    direct = re.compile(r"msgspec\.convert\(|msgspec\.json\.decode\(.*type=(?!str\b)")
    found = {path.name for path in Path("include/frazil").rglob("*.py") if direct.search(path.read_text())}
    assert found == {"typed_json.py"}
