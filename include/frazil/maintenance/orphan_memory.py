"""The orphan files that earlier cleanups of a table found, in `<location>/_frazil/_maintenance/orphans.json.gz`. A
cleanup only deletes files that were found before.
"""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from dataclasses import asdict, dataclass, replace
from typing import Self

from pyiceberg.table.metadata import TableMetadata

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MAX_FILES = 100_000
"""Maximum number of orphan files that are remembered. Later runs handle the rest."""


@dataclass(frozen=True, slots=True)
class Progress:
    snapshot_id: int | None
    sequence_number: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        return cls(metadata.current_snapshot_id, metadata.next_sequence_number())

    def is_superseded_by(self, now: Progress) -> bool:
        """Return whether a commit that was prepared at this progress would be refused at the progress `now`."""
        return now.sequence_number > self.sequence_number and now.snapshot_id != self.snapshot_id


@dataclass(frozen=True, slots=True)
class OrphanRun:
    """The files that one run was the first to find."""

    at_ms: int
    standing: Progress
    """Progress at the end of the run's listing."""
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OrphanMemory:
    """The results of earlier runs. Each file belongs to the run that found it first."""

    table_uuid: str
    runs: tuple[OrphanRun, ...] = ()

    def to_bytes(self) -> bytes:
        text = json.dumps({"format": FORMAT_VERSION, **asdict(self)})
        return gzip.compress(text.encode(), mtime=0)

    @classmethod
    def read(cls, data: bytes | None, *, table_uuid: str) -> Self:
        """Parse the stored memory; empty if it is missing, damaged, of a newer format, or of another table."""
        if data is None:
            return cls(table_uuid)
        try:
            raw = json.loads(gzip.decompress(data))
            if (raw["format"], raw["table_uuid"]) == (FORMAT_VERSION, table_uuid):
                runs = (OrphanRun(r["at_ms"], Progress(**r["standing"]), tuple(r["paths"])) for r in raw["runs"])
                return cls(table_uuid, tuple(runs))
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
            log.warning("the record of earlier cleanups cannot be read: this run counts as the first")
        return cls(table_uuid)

    def after(self, now: OrphanRun) -> Self:
        """Return the memory after the run `now`.

        Adds files that this run was the first to find. Drops files that it did not find.
        """
        found = set(now.paths)
        kept = [replace(run, paths=tuple(path for path in run.paths if path in found)) for run in self.runs]
        fresh = sorted(found.difference(*(run.paths for run in kept)))
        room = max(MAX_FILES - sum(len(run.paths) for run in kept), 0)
        return replace(self, runs=tuple(run for run in (*kept, replace(now, paths=tuple(fresh[:room]))) if run.paths))
