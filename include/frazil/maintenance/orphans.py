"""Finds orphan files below a table's location: from a listing, the table's metadata, and earlier runs. Pure. Five rules
ensure that no snapshot will ever reference a deleted file:

1. The table is loaded after the listing, and again before each batch of deletions.
2. Staged files (`<stream>/<epoch>/<batch>/`, `<stream>/waited/<epoch>/<batch>/`) are kept until the marker's `settled`
   has passed their batch, even if the stream is undeclared. A backfill's staged files are kept while its branch is
   open. The files of a forgotten stream are not kept, because it can commit nothing.
3. A manifest is kept while one of the files that it lists is kept: a retried commit reuses the
   manifest.
4. Another commit has succeeded since the file was first found. A commit that was in progress then will be refused.
5. The file is older than `older-than` by the storage's clock, and an earlier run found it at least an hour ago. This
   protects files that Spark is writing, which are registered nowhere. A host whose clock is off by a third of
   `older-than` deletes nothing.
"""

from __future__ import annotations

import gzip
import json
import logging
import posixpath
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import NamedTuple, Self
from urllib.parse import unquote

from pyiceberg.table.metadata import TableMetadata

from frazil.commit.backfill_records import open_backfills
from frazil.commit.marker import BatchKey, read_markers
from frazil.spec.maintenance import Orphans
from frazil.spec.units import format_count
from frazil.table.object_store import FileInfo
from frazil.typed_json import convert

log = logging.getLogger(__name__)

MEMORY_FORMAT = 1
MAX_REMEMBERED = 100_000
"""Maximum number of files that are remembered. Later runs handle the rest."""


@dataclass(frozen=True, slots=True)
class Progress:
    snapshot_id: int | None
    sequence_number: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        return cls(metadata.current_snapshot_id, metadata.next_sequence_number())

    def is_superseded_by(self, now: Progress) -> bool:
        """Return whether a commit that was prepared at this progress would be refused at `now`."""
        return now.sequence_number > self.sequence_number and now.snapshot_id != self.snapshot_id


@dataclass(frozen=True, slots=True)
class OrphanRun:
    at_ms: int
    standing: Progress
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OrphanMemory:
    """The orphans that earlier runs found, each under its first run. In `_frazil/_maintenance/orphans.json.gz`."""

    table_uuid: str
    runs: tuple[OrphanRun, ...] = ()

    def to_bytes(self) -> bytes:
        text = json.dumps({"format": MEMORY_FORMAT, **asdict(self)})
        return gzip.compress(text.encode(), mtime=0)

    @classmethod
    def read(cls, data: bytes | None, *, table_uuid: str) -> Self:
        """Parse the stored memory; empty if missing, damaged, of a newer format, or of another table."""
        if data is None:
            return cls(table_uuid)
        try:
            raw = json.loads(gzip.decompress(data))
            if (raw["format"], raw["table_uuid"]) == (MEMORY_FORMAT, table_uuid):
                return convert(raw, cls)
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
            log.warning("the record of earlier cleanups cannot be read: this run counts as the first")
        return cls(table_uuid)

    def after(self, now: OrphanRun) -> Self:
        """Return the memory after the run `now`: adds its new orphans, and drops orphans that it no longer found."""
        paths = set(now.paths)
        runs = [replace(run, paths=tuple(path for path in run.paths if path in paths)) for run in self.runs]
        fresh = sorted(paths.difference(*(run.paths for run in runs)))
        room = max(MAX_REMEMBERED - sum(len(run.paths) for run in runs), 0)
        return replace(self, runs=tuple(run for run in (*runs, replace(now, paths=tuple(fresh[:room]))) if run.paths))


_CANONICAL_SCHEMES = {
    "": "file",
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfss": "abfs",
    "wasb": "abfs",
    "wasbs": "abfs",
}
"""Kind of storage by URI scheme, if the names differ."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)


class StorePath(NamedTuple):
    store: str
    """Kind of storage, with its bucket or host: `s3:bucket`, `file:`."""
    path: str
    """Path from the root, URL-decoded, without repeated or trailing slashes."""

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    def is_inside(self, folder: StorePath) -> bool:
        return self.store == folder.store and below(self.path, folder.path)


def below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def normalise_path(path: str) -> StorePath:
    """Normalise a path: `s3a://b//t/x` equals `s3://b/t/x/`, and `file:/t/x` equals `/t/x`."""
    match = _SCHEME.match(path)
    scheme = match[1].lower() if match else ""
    family, path_part = _CANONICAL_SCHEMES.get(scheme, scheme), path[match.end() :] if match else path
    authority = ""
    if family != "file" and path_part.startswith("//"):
        authority, _, path_part = path_part[2:].partition("/")
    return StorePath(f"{family}:{authority.lower()}", _clean_path(path_part))


def _clean_path(path: str) -> str:
    while "%" in path and (decoded := unquote(path)) != path:
        path = decoded
    path = "/" + path.strip("/")
    return posixpath.normpath(path) if "//" in path or "/." in path else path


MIN_RUN_DISTANCE_MS = 3_600_000
"""Minimum time (ms) between the runs that find and delete a file."""
MAX_LISTED = 3
"""Maximum number of paths in a message."""

_STAGED = re.compile(r"/([a-z][a-z0-9_-]{0,62})/(?:backfill-([^/]+)/|waited/)?(\d{8,})/(\d{8,})/")
"""A staged file's folder: stream, backfill id, epoch, batch."""


@dataclass(frozen=True, slots=True)
class UndecidedFiles:
    """The files that may still be committed, according to the table's properties."""

    settled: Mapping[str, BatchKey | None]
    """Each stream's last settled batch, if any."""
    backfills: Mapping[str, str]

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self:
        """Read a table's properties. Raises MarkerUnreadable."""
        return cls(
            {stream: marker.settled for stream, marker in read_markers(properties).items()},
            {backfill.stream: backfill.id for backfill in open_backfills(properties)},
        )

    def holds(self, path: str) -> bool:
        """Return whether a staged file may still be committed; False outside of batch folders."""
        for stream, backfill, epoch, batch in _STAGED.findall(path):
            if backfill:
                if self.backfills.get(stream) == backfill:
                    return True
            elif stream in self.settled:
                settled = self.settled[stream]
                if settled is None or BatchKey(int(epoch), int(batch)) > settled:
                    return True
        return False


@dataclass(frozen=True, slots=True)
class TableFolders:
    identifier: str
    location: StorePath
    data: StorePath
    metadata: StorePath

    @property
    def all(self) -> tuple[StorePath, ...]:
        return self.location, self.data, self.metadata


def find_shared_folder(folders: TableFolders, other_folders: Iterable[TableFolders]) -> str | None:
    """Return why a table's folders may contain other tables' files; None if they cannot."""
    for folder in folders.all:
        if folder.path == "/" or (folder != folders.location and folders.location.is_inside(folder)):
            return f"its folder {folder.path} is the storage's root, or holds the table's own location"
    for other in other_folders:
        for mine in folders.all:
            if mine in other.all or any(mine.is_inside(theirs) for theirs in (other.data, other.metadata)):
                return f"its folder {mine.path} is shared with table {other.identifier}"
    return None


@dataclass(frozen=True, slots=True)
class ListedFile:
    info: FileInfo
    resolved: StorePath


@dataclass(frozen=True, slots=True)
class References:
    paths: Set[str]
    live: Collection[StorePath]
    """Files of the newest snapshot before the listing."""
    manifests: Set[str]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One listing's files: each is referenced, registered, young or a candidate."""

    listed: int
    referenced: int
    registered: int
    young: int
    candidates: tuple[ListedFile, ...]
    refused: str | None = None

    @property
    def candidate_bytes(self) -> int:
        return sum(file.info.bytes for file in self.candidates)

    def without(self, undecided: Set[str]) -> Self:
        """Count undecided candidates (their paths) as registered files instead."""
        remaining = tuple(file for file in self.candidates if file.info.path not in undecided)
        registered = self.registered + len(self.candidates) - len(remaining)
        return replace(self, registered=registered, candidates=remaining)


def select_own_files(
    listing: Iterable[ListedFile], *, roots: Iterable[StorePath], other_folders: Iterable[TableFolders]
) -> list[ListedFile]:
    """Return the listed files, without hidden files (such as those below `_frazil`) and other tables' files."""
    starts = [root.path for root in roots]
    inside = [p.path for other in other_folders for p in other.all if p.path not in starts]
    theirs = [path for path in inside if any(below(path, start) for start in starts)]
    return [
        file
        for file in listing
        if not any(_is_hidden(file.resolved.path, start) for start in starts)
        and not any(below(file.resolved.path, folder) for folder in theirs)
    ]


def _is_hidden(path: str, start: str) -> bool:
    relative = path[len(start) :] if below(path, start) else ""
    return "/_" in relative or "/." in relative


def classify_files(
    files: Collection[ListedFile], references: References, undecided: UndecidedFiles, *, settings: Orphans, now_ms: int
) -> Evaluation:
    """Classify files as referenced, registered, young or candidates. If `refused` is set, no file may be deleted."""
    old_ms = now_ms - settings.older_than // timedelta(milliseconds=1)
    referenced = registered = young = total_bytes = 0
    candidates = []
    for file in files:
        total_bytes += file.info.bytes
        if file.resolved.path in references.paths:
            referenced += 1
        elif undecided.holds(file.resolved.path):
            registered += 1
        elif file.info.modified_ms > old_ms:
            young += 1
        else:
            candidates.append(file)
    candidates.sort(key=lambda file: (file.resolved.store, file.info.path))
    evaluation = Evaluation(len(files), referenced, registered, young, tuple(candidates))
    too_large = _share_problem(evaluation, total_bytes, limit=settings.max_share)
    refused = _find_similar_paths(candidates, references) or too_large
    return replace(evaluation, refused=refused)


def listing_problem(present: Set[str], references: References, roots: Collection[StorePath]) -> str | None:
    """Return why the listing is incomplete: it misses live files of its folders, or half of all."""
    lost = [p.path for p in references.live if p.path not in present and any(p.is_inside(root) for root in roots)]
    if lost:
        return (
            f"{len(lost)} of the table's {len(references.live)} live files are not in the listing of their folder, "
            f"such as {_examples(lost)}: the listing is of another folder, or incomplete"
        )
    listed = sum(p.path in present for p in references.live)
    if 2 * listed < len(references.live):
        return (
            f"only {listed} of the table's {len(references.live)} live files are below "
            f"{_examples(r.path for r in roots)}: paths may be written in an unknown form"
        )
    return None


def _find_similar_paths(candidates: Iterable[ListedFile], references: References) -> str | None:
    """Return why candidates with a referenced file's name must be kept: each may be that file or a copy."""
    names = {path.rsplit("/", 1)[-1] for path in references.paths}
    alike = [file.info.path for file in candidates if file.resolved.name in names]
    if not alike:
        return None
    return (
        f"{format_count(len(alike), 'file', 'has|have')} a name that the table references under another path, such as "
        f"{_examples(alike)}: they may be the same files. Keep copies outside the table's folders"
    )


def _share_problem(evaluation: Evaluation, total_bytes: int, *, limit: int) -> str | None:
    """Return why the candidates are too many to delete; None if they are not."""
    count, size = len(evaluation.candidates), evaluation.candidate_bytes
    if 100 * count <= limit * evaluation.listed and 100 * size <= limit * total_bytes:
        return None
    return (
        f"{count} of {evaluation.listed} files ({size} of {total_bytes} bytes) are orphans, over max-share {limit} %: "
        "check some of them. If they are orphans, declare a larger maintenance.orphans.max-share"
    )


def find_deletable(
    candidates: Iterable[ListedFile], runs: Iterable[OrphanRun], *, now_ms: int, progress: Progress
) -> list[ListedFile]:
    """Return the candidates that a run found at least an hour ago, if the table has had a commit since then."""
    confirmed = {
        path
        for run in runs
        if now_ms - run.at_ms >= MIN_RUN_DISTANCE_MS and run.standing.is_superseded_by(progress)
        for path in run.paths
    }
    return [file for file in candidates if file.info.path in confirmed]


def _examples(paths: Iterable[str]) -> str:
    return ", ".join(islice(paths, MAX_LISTED))
