"""Finds orphan files below a table's location: from a listing, the table's metadata, and earlier runs. Pure.

A file may be deleted only if no snapshot will ever reference it, however writers, backfills, compaction and expiry
interleave. That follows from five rules:

1. *Listing, then metadata.* The table is loaded after the listing, so a file that was committed meanwhile is referenced
   or not listed; it is loaded again before each batch of deletions.
2. *Staged files are undecided until the marker has passed them.* A stream's files lie in `<stream>/<epoch>/<batch>/`. A
   take-over lands before its epoch stages a file, so the table has a marker for every listed file. Batches commit in
   order: up to the marker's `settled` each is in the table or never will be, and its unreferenced files are waste.
   Later ones are kept, journaled or not, also of streams that are no longer declared; so is all of a backfill whose
   lane is open. A forgotten stream is fenced: it has no marker and commits nothing. The same holds for
   `<stream>/waited/<epoch>/<batch>/`, with rows that waited for a table of a route.
3. *A manifest is as undecided as the files in it*, because a commit that is tried again reuses it.
4. *The table has committed since.* Any other commit that was under way when a file was first found (a manifest list, a
   `metadata.json`, an append to `frazil.signals`) asserts the branch's head, or the metadata, from before that run:
   once the branch has moved on, every catalog refuses it. Files that it writes for another attempt are minutes old.
5. *Age, twice.* The files of a rewrite by Spark are registered nowhere until it commits. They are left alone for
   `older-than` by the storage's clock, and then until a second run at least an hour later: no rewrite takes days. A
   host whose clock is off by more than a third of that is refused.

So the clock alone never decides: for streams and backfills rule 2 holds at any time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Self

from frazil.commit.backfill_marker import open_backfills
from frazil.commit.marker import BatchKey, read_markers
from frazil.maintenance.file_paths import Place, below
from frazil.maintenance.orphan_memory import OrphanRun, Progress
from frazil.spec.maintenance import Orphans
from frazil.spec.units import counted
from frazil.table.object_store import FileInfo

AGAIN_AFTER_MS = 3_600_000
NAMED = 3
"""Files that a sentence lists."""

_STAGED = re.compile(r"/([a-z][a-z0-9_-]{0,62})/(?:backfill-([^/]+)/|waited/)?(\d{8,})/(\d{8,})/")


@dataclass(frozen=True, slots=True)
class Undecided:
    """Files that may still be committed, according to the table's properties."""

    settled: Mapping[str, BatchKey | None]
    """The last settled batch of each stream; None if a new marker has none yet."""
    backfills: Mapping[str, str]
    """The open backfill of each stream."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self:
        """Raises `MarkerUnreadable` if the properties do not show what is undecided."""
        return cls(
            {stream: marker.settled for stream, marker in read_markers(properties).items()},
            {backfill.stream: backfill.id for backfill in open_backfills(properties)},
        )

    def holds(self, path: str) -> bool:
        """Whether a staged file may still be committed; False for a file outside of batch folders."""
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
class Folders:
    """The folders of one table's files."""

    identifier: str
    location: Place
    data: Place
    metadata: Place

    @property
    def all(self) -> tuple[Place, ...]:
        return self.location, self.data, self.metadata


def shared_with(own: Folders, others: Iterable[Folders]) -> str | None:
    """Why a table's folders may hold other tables' files; None if they are its own."""
    for folder in own.all:
        if folder.path == "/" or (folder != own.location and own.location.lies_in(folder)):
            return f"its folder {folder.path} is the storage's root, or holds the table's own location"
    for other in others:
        for mine in own.all:
            if mine in other.all or any(mine.lies_in(theirs) for theirs in (other.data, other.metadata)):
                return f"its folder {mine.path} is shared with table {other.identifier}"
    return None


@dataclass(frozen=True, slots=True)
class Listed:
    """One file below the table's folders."""

    info: FileInfo
    place: Place


@dataclass(frozen=True, slots=True)
class References:
    """Canonical paths that the table's metadata, loaded after the listing, references."""

    paths: Set[str]
    live: Collection[Place]
    """The files, manifests and manifest list of the newest snapshot before the listing."""
    manifests: Set[str]
    """The manifests that were read."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result for one listing. Each listed file counts as exactly one of these."""

    listed: int
    referenced: int
    registered: int
    young: int
    candidates: tuple[Listed, ...]
    """Orphans that are old enough."""
    refused: str | None = None

    @property
    def candidate_bytes(self) -> int:
        return sum(file.info.bytes for file in self.candidates)

    def without(self, undecided: Set[str]) -> Self:
        """The result with these candidates, by their listed paths, counted as registered."""
        left = tuple(file for file in self.candidates if file.info.path not in undecided)
        registered = self.registered + len(self.candidates) - len(left)
        return replace(self, registered=registered, candidates=left)


def own_files(listing: Iterable[Listed], *, roots: Iterable[Place], others: Iterable[Folders]) -> list[Listed]:
    """The listing without hidden files (such as `_frazil`) and without other tables' folders."""
    starts = [root.path for root in roots]
    inside = [p.path for other in others for p in other.all if p.path not in starts]
    theirs = [path for path in inside if any(below(path, start) for start in starts)]
    return [
        file
        for file in listing
        if not any(_hidden(file.place.path, start) for start in starts)
        and not any(below(file.place.path, folder) for folder in theirs)
    ]


def _hidden(path: str, start: str) -> bool:
    rest = path[len(start) :] if below(path, start) else ""
    return "/_" in rest or "/." in rest


def evaluate(
    files: Collection[Listed], references: References, undecided: Undecided, *, settings: Orphans, now_ms: int
) -> Evaluation:
    """Sort the table's own files into those to keep and those that may be deleted."""
    old_ms = now_ms - settings.older_than // timedelta(milliseconds=1)
    referenced = registered = young = total_bytes = 0
    candidates = []
    for file in files:
        total_bytes += file.info.bytes
        if file.place.path in references.paths:
            referenced += 1
        elif undecided.holds(file.place.path):
            registered += 1
        elif file.info.modified_ms > old_ms:
            young += 1
        else:
            candidates.append(file)
    candidates.sort(key=lambda file: (file.place.store, file.info.path))
    found = Evaluation(len(files), referenced, registered, young, tuple(candidates))
    refused = _similar_paths(candidates, references) or _too_many(found, total_bytes, limit=settings.max_share)
    return replace(found, refused=refused)


def missing(present: Set[str], references: References, roots: Collection[Place]) -> str | None:
    """Why the listing cannot be this table's; None if it has all live files below its folders, and most in total."""
    lost = [p.path for p in references.live if p.path not in present and any(p.lies_in(root) for root in roots)]
    if lost:
        return (
            f"{len(lost)} of the table's {len(references.live)} live files are not in the listing of their folder, "
            f"such as {_some(lost)}: the listing is of another folder, or incomplete"
        )
    found = sum(p.path in present for p in references.live)
    if 2 * found < len(references.live):
        return (
            f"only {found} of the table's {len(references.live)} live files lie below {_some(r.path for r in roots)}: "
            "paths may use an unknown spelling"
        )
    return None


def _similar_paths(candidates: Iterable[Listed], references: References) -> str | None:
    """Refuse candidates named like a referenced file: names are unique, so it is the same file, or a copy."""
    names = {path.rsplit("/", 1)[-1] for path in references.paths}
    alike = [file.info.path for file in candidates if file.place.name in names]
    if not alike:
        return None
    return (
        f"{counted(len(alike), 'file', 'has|have')} a name that the table references under another path, such as "
        f"{_some(alike)}: they may be the same files. Keep copies outside the table's folders"
    )


def _too_many(found: Evaluation, total_bytes: int, *, limit: int) -> str | None:
    count, size = len(found.candidates), found.candidate_bytes
    if 100 * count <= limit * found.listed and 100 * size <= limit * total_bytes:
        return None
    return (
        f"{count} of {found.listed} files ({size} of {total_bytes} bytes) would go, over max-share {limit} %: check "
        "some of them, and declare a larger maintenance.orphans.max-share if that is right"
    )


def deletable(
    candidates: Iterable[Listed], runs: Iterable[OrphanRun], *, now_ms: int, progress: Progress
) -> list[Listed]:
    """Candidates that an earlier run found, at least an hour ago and before the table's last commit."""
    known = {
        path
        for run in runs
        if now_ms - run.at_ms >= AGAIN_AFTER_MS and run.standing.has_moved_to(progress)
        for path in run.paths
    }
    return [file for file in candidates if file.info.path in known]


def _some(paths: Iterable[str]) -> str:
    return ", ".join(islice(paths, NAMED))
