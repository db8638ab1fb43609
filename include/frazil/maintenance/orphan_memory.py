"""Remembers what earlier cleanups of a table found: a cleanup only deletes what an earlier one found too.

Stored in `<location>/_frazil/_maintenance/orphans.json.gz`; no stream's name begins with an underscore.
"""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from pyiceberg.table.metadata import TableMetadata

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MAX_FILES = 100_000
"""Files that are remembered; later runs handle the rest."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The table's progress at one moment."""

    snapshot_id: int | None
    sequence_number: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        return cls(metadata.current_snapshot_id, metadata.next_sequence_number())

    def has_moved_to(self, now: Progress) -> bool:
        """Whether a commit prepared at that time would now be refused."""
        return now.sequence_number > self.sequence_number and now.snapshot_id != self.snapshot_id


@dataclass(frozen=True, slots=True)
class OrphanRun:
    """What one run found, with the table's progress after its listing."""

    at_ms: int
    standing: Progress
    paths: tuple[str, ...]
    """Paths as listed."""


@dataclass(frozen=True, slots=True)
class OrphanMemory:
    """Earlier runs, each with the paths that it was the first to find."""

    table_uuid: str
    runs: tuple[OrphanRun, ...] = ()

    def to_bytes(self) -> bytes:
        text = json.dumps({"format": FORMAT_VERSION, **asdict(self)})
        return gzip.compress(text.encode(), mtime=0)

    @classmethod
    def read(cls, data: bytes | None, *, table_uuid: str) -> Self:
        """The stored memory; empty if it is missing, damaged, newer or another table's, as before the first run."""
        if data is None:
            return cls(table_uuid)
        try:
            raw = json.loads(gzip.decompress(data))
            if (raw["format"], raw["table_uuid"]) == (FORMAT_VERSION, table_uuid):
                return cls(table_uuid, tuple(_run(run) for run in raw["runs"]))
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
            log.warning("the record of earlier cleanups cannot be read: this run counts as the first")
        return cls(table_uuid)

    def after(self, now: OrphanRun) -> Self:
        """The memory after a run: adds what it was the first to find, and drops what it no longer found."""
        found = set(now.paths)
        kept = [replace(run, paths=tuple(path for path in run.paths if path in found)) for run in self.runs]
        fresh = sorted(found.difference(*(run.paths for run in kept)))
        room = max(MAX_FILES - sum(len(run.paths) for run in kept), 0)
        return replace(self, runs=tuple(run for run in (*kept, replace(now, paths=tuple(fresh[:room]))) if run.paths))


def _run(raw: Mapping[str, Any]) -> OrphanRun:
    return OrphanRun(raw["at_ms"], Progress(**raw["standing"]), tuple(raw["paths"]))
