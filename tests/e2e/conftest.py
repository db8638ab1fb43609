"""The `frazil` command as a person's shell runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def frazil(stream: Any) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`frazil("audit", "events")` on the test's stream; nobody answers its questions."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("frazil")), *arguments, "--streams", str(stream.streams)]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )

    return call
