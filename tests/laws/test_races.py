"""Several processes act at once: one of them wins, or all agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import LongType

from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from frazil.table.storage import LocalStore, open_store
from frazil.table.tables import ensure_dead_letters, ensure_table
from tests.processes import several_processes
from tests.unit.table.conftest import stream, unconfigured

__all__ = ["stream", "unconfigured"]

Stream = Callable[..., StreamSpec]
PROGRAM = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from loop import doubled
print(json.dumps([int(doubled(3)), float(doubled(1.5)), sum(doubled.stats.cache_hits.values())]))
"""
LOOP = """
from frazil.ingest.compiled import compiled

@compiled
def doubled(x):
    return x * 2
"""


def _ensure_in_a_process(start: Any, environment: dict[str, str], spec_json: str) -> str:
    os.environ.clear()
    os.environ.update(environment)
    spec = StreamSpec.model_validate_json(spec_json)
    start.wait()
    catalog = load_catalog(None)
    ensure_dead_letters(catalog, spec)
    return ensure_table(catalog, spec).metadata.table_uuid.hex


@pytest.mark.rotates(2)
@pytest.mark.usefixtures("unconfigured")
def test_processes_that_make_and_evolve_one_table_at_once_agree(stream: Stream) -> None:
    """Four processes create all at the same moment: the catalog's file, the namespace, both tables."""
    context = several_processes()
    with context.Manager() as manager:
        start = manager.Barrier(4)
        specs = [stream(schema={"departed": "timestamptz", f"extra_{index}": "long"}) for index in range(4)]
        with context.Pool(4) as pool:
            uuids = pool.starmap(_ensure_in_a_process, [(start, {**os.environ}, s.model_dump_json()) for s in specs])
    assert len(set(uuids)) == 1
    table = load_catalog(None).load_table("demo.flights")
    assert {field.name for field in table.schema().fields} >= {f"extra_{index}" for index in range(4)}
    assert all(isinstance(table.schema().find_type(f"extra_{index}"), LongType) for index in range(4))


def _put_all(start: Any, folder: str, me: int) -> list[int]:
    store = open_store(folder, {})
    start.wait()
    return [index for index in range(50) if store.put_if_absent(f"{folder}/j/{index}", str(me).encode() * 10_000)]


def test_when_many_processes_write_one_path_one_wins_and_its_bytes_are_complete(tmp_path: Path) -> None:
    context = several_processes()
    with context.Manager() as manager:
        start = manager.Barrier(4)
        with context.Pool(4) as pool:
            won = pool.starmap(_put_all, [(start, str(tmp_path), me) for me in range(4)])
    assert sorted(index for wins in won for index in wins) == list(range(50))
    for me, wins in enumerate(won):
        assert all(LocalStore().get(f"{tmp_path}/j/{index}") == str(me).encode() * 10_000 for index in wins)


def start(tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "loop.py").write_text(LOOP)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.rotates(2)
def test_processes_that_compile_concurrently_share_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for hits in (None, 2):
        processes = [start(tmp_path) for _ in range(2)]
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert (process.returncode, err) == (0, "")
            six, three, found = json.loads(out)
            assert (six, three) == (6, 3.0)
            assert hits in {None, found}
