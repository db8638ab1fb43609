"""Merges copy manifest entries of kept files unchanged, including unknown fields."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest

from frazil.commit.journal import bare_path
from frazil.table.branches import head_of
from tests.unit.commit.conftest import FaultyCatalog
from tests.unit.commit.upserts import BY_REGION, UpsertWorld, upsert_world


def _manifests(world: UpsertWorld) -> list[Path]:
    head = head_of(world.load().metadata)
    assert head is not None
    return [Path(bare_path(manifest.manifest_path)) for manifest in head.manifests(world.load().io)]


def _add_fields(path: Path) -> None:
    """A later version of another engine may write it."""
    reader = fastavro.reader(io.BytesIO(path.read_bytes()))
    entries: list[Any] = list(reader)
    schema: Any = reader.writer_schema
    (data_file,) = [field["type"] for field in schema["fields"] if field["name"] == "data_file"]
    data_file["fields"] += [
        {"name": "referenced_data_file", "type": ["null", "string"], "default": None, "field-id": 143},
        {"name": "unknown", "type": ["null", "double"], "default": None, "field-id": 999},
    ]
    for entry in entries:
        entry["data_file"] |= {"referenced_data_file": "file:///a", "unknown": 0.1}
    kept = {name: text for name, text in reader.metadata.items() if not name.startswith("avro.")}
    out = io.BytesIO()
    fastavro.writer(out, schema, entries, codec="deflate", metadata={**kept, "engine": "other"})
    path.write_bytes(out.getvalue())


def _live(world: UpsertWorld) -> dict[str, Any]:
    entries = [e for path in _manifests(world) for e in fastavro.reader(io.BytesIO(path.read_bytes()))]
    assert all(entry["sequence_number"] for entry in entries if entry["status"] != 1)
    return {e["data_file"]["file_path"]: e["data_file"] for e in entries if e["status"] != 2}  # type: ignore[index, call-overload]


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_a_merge_keeps_unknown_manifest_fields_of_other_files(catalog: FaultyCatalog, tmp_path: Path, how: Any) -> None:
    world = upsert_world(catalog, tmp_path, BY_REGION, how=how)
    committer = world.begin()
    world.upsert(committer, [(1, ("eu", 1)), (2, ("us", 2)), (3, ("eu", 3))])
    if how == "merge-on-read":
        world.upsert(committer, [(1, ("eu", 4))])
    for path in _manifests(world):
        _add_fields(path)
    before = _live(world)

    world.how = "copy-on-write"
    world.upsert(committer, [(2, ("us", 5))])

    after = _live(world)
    kept = before.keys() & after.keys()
    assert 0 < len(kept) < len(before)
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}
    headers = [fastavro.reader(io.BytesIO(path.read_bytes())).metadata for path in _manifests(world)]
    assert all(header["format-version"] == "2" for header in headers)
    assert any(header.get("engine") == "other" for header in headers)
    assert world.accounts()[2] == ("us", 5)
