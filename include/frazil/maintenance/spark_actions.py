"""Calls Iceberg's own actions on one table through its Java API, and returns their results as plain numbers.

Decides nothing. If another commit makes an action impossible, it raises `LostRace`: the other commit always wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.errors import PySparkException

from frazil.commit.target import target_file_bytes
from frazil.maintenance.compaction import Rewrite
from frazil.maintenance.partition_filter import partition_filter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS_AT_ONCE = 200
"""Partitions of one action: planning compares every file with each of them."""
FILES_A_GROUP = 16
"""Minimum target files of one commit: a lost commit loses no more than that."""
BUSY_TRIES = 3
"""Tries for a piece of a partition that batches merge into."""
_CONFLICTS = ("CommitFailedException", "ValidationException", "Still referenced by refs")
"""Iceberg's errors for conflicts; the last one if an expiring snapshot was tagged meanwhile."""


class LostRace(Exception):
    """Another commit won: this action changed nothing, and nothing is lost."""


class SparkFailed(Exception):
    """Any other error in the JVM, in its own words."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Result of rewriting data files."""

    removed: int = 0
    added: int = 0
    bytes: int = 0
    """Size of the removed files."""
    failed: int = 0
    """Files of jobs that failed before they had anything to commit."""
    lost: tuple[str, ...] = ()
    """Errors of the parts that lost against another commit."""
    errors: tuple[str, ...] = ()
    """Errors of the parts that failed otherwise."""

    def __add__(self, other: Rewritten) -> Rewritten:
        return Rewritten(
            self.removed + other.removed,
            self.added + other.added,
            self.bytes + other.bytes,
            self.failed + other.failed,
            self.lost + other.lost,
            self.errors + other.errors,
        )


@dataclass(frozen=True, slots=True)
class SparkTable:
    """A table in this session's JVM, with the metadata that the decisions were based on."""

    spark: SparkSession
    table: Table
    java: Any

    @classmethod
    def load(cls, spark: SparkSession, catalog: Catalog, table: Table) -> SparkTable:
        name = ".".join(f"`{part}`" for part in (catalog.name, *table.name()))
        with java_errors():
            java = _jvm(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
            java.refresh()  # the session's catalog caches tables
        return cls(spark, table, java)

    @property
    def _actions(self) -> Any:
        return _jvm(self.spark).org.apache.iceberg.spark.actions.SparkActions.get(self.spark._jsparkSession)

    def rewrite(self, rewrites: Sequence[Rewrite], *, sort: bool) -> Rewritten:
        """Rewrite the small files of partitions: whole partitions together, every other one alone.

        A failing part does not stop the others; raises nothing.
        """
        whole = [r for r in rewrites if not (r.in_part or r.applies_deletes or r.busy)]
        batches = [
            alike[at : at + PARTITIONS_AT_ONCE]
            for small in (True, False)
            if (alike := [r for r in whole if r.small is small])
            for at in range(0, len(alike), PARTITIONS_AT_ONCE)
        ]
        batches += [[r] for r in rewrites if r.in_part or r.applies_deletes or r.busy]
        return sum((self._attempt(batch, sort=sort) for batch in batches), Rewritten())

    def _attempt(self, batch: Sequence[Rewrite], *, sort: bool) -> Rewritten:
        """Rewrite once; retry at once a piece that a merge overtook, because the next batch has only just begun."""
        for left in reversed(range(BUSY_TRIES if batch[0].busy else 1)):
            try:
                done = self._rewrite(batch, sort=sort)
            except LostRace as conflict:
                done = Rewritten(lost=(str(conflict),))
            except SparkFailed as error:
                return Rewritten(errors=(str(error),))
            if not (done.lost and left):
                break
            with java_errors():
                self.java.refresh()
        return done

    def _rewrite(self, batch: Sequence[Rewrite], *, sort: bool) -> Rewritten:
        metadata, options = self.table.metadata, self._options(batch)
        chosen = [r.partition.values for r in batch]
        with java_errors():
            begun = self.java.currentSnapshot().snapshotId()
            action = self._actions.rewriteDataFiles(self.java)
            action = action.sort() if sort else action.binPack()
            those = partition_filter(_jvm(self.spark), chosen, spec=metadata.spec(), schema=metadata.schema())
            action = action.filter(those)
            for key, value in options.items():
                action = action.option(key, value)
            done = action.snapshotProperty("frazil.operation", "compaction").execute()
            removed, failed = done.rewrittenDataFilesCount(), done.failedDataFilesCount()
            lost = () if removed or failed or not self._finds(those, options, begun) else ("its commits failed",)
        return Rewritten(removed, done.addedDataFilesCount(), done.rewrittenBytesCount(), failed, lost)

    def _finds(self, those: Any, options: dict[str, str], snapshot_id: int) -> bool:
        """Whether there was anything to commit: partial progress does not distinguish failed commits from none."""
        planner = _jvm(self.spark).org.apache.iceberg.actions.BinPackRewriteFilePlanner
        made = planner(self.java, those, snapshot_id, True)
        made.init(options)
        return bool(made.plan().totalGroupCount())

    def _options(self, batch: Sequence[Rewrite]) -> dict[str, str]:
        """Iceberg's options for an action on similar rewrites."""
        target, rewrite = target_file_bytes(self.table), batch[0]
        percents = [r.deleted_percent for r in batch if r.deleted_percent is not None]
        options: dict[str, object] = {
            "target-file-size-bytes": target,
            "min-input-files": 2,  # the plan has decided already
            "max-file-size-bytes": 2**62,  # large files are fine
            "partial-progress.enabled": "true",
            "max-file-group-size-bytes": FILES_A_GROUP * target,
            "max-concurrent-file-group-rewrites": self.spark.sparkContext.defaultParallelism,
            "rewrite-job-order": "files-desc",
            "use-starting-sequence-number": "true",  # concurrent deletes still apply to the rewritten rows
            # Partitions of the batch without a percentage have no file with as many deleted rows.
            "delete-ratio-threshold": min(percents, default=100) / 100,
        }
        if not rewrite.small:
            options["min-file-size-bytes"] = 0
        if rewrite.largest_bytes is not None:
            options["max-files-to-rewrite"] = rewrite.files
        if rewrite.below_bytes is not None:
            limit = rewrite.files * rewrite.below_bytes
            options |= {
                "min-file-size-bytes": rewrite.below_bytes,
                "max-files-to-rewrite": rewrite.files,
                # a sort writes as many files as for a whole group, even if it gets only a part of it
                "max-file-group-size-bytes": min(FILES_A_GROUP * target, limit),
            }
        if rewrite.applies_deletes:
            options |= {"delete-file-threshold": 1, "remove-dangling-deletes": "true"}
        return {key: str(value) for key, value in options.items()}

    def drop_deletes(self, paths: Collection[str]) -> int:
        """Remove delete files from the table, and return how many it had. Their data files must be gone, and a removed
        file never returns.

        Iceberg's own `remove-dangling-deletes` only finds those older than all data files of a partition.
        """
        files, left = _jvm(self.spark).org.apache.iceberg.ManifestFiles, set(paths)
        with java_errors():
            self.java.refresh()
            change = self.java.newRewrite()
            for manifest in self.java.currentSnapshot().deleteManifests(self.java.io()):
                entries = files.readDeleteManifest(manifest, self.java.io(), self.java.specs())
                found = entries.iterator()
                while left and found.hasNext():
                    file = found.next()
                    if (path := file.location()) in left:
                        change.deleteFile(file)
                        left.remove(path)
                entries.close()
            if len(left) < len(paths):
                change.set("frazil.operation", "compaction").commit()
        return len(paths) - len(left)

    def rewrite_manifests(self, spec_id: int) -> tuple[int, int]:
        """Rewrite a spec's manifests; returns how many were replaced, and by how many."""
        with java_errors():
            action = self._actions.rewriteManifests(self.java).specId(spec_id)
            done = action.option("use-caching", "false").snapshotProperty("frazil.operation", "manifests").execute()
            return (_count(done.rewrittenManifests()), _count(done.addedManifests()))

    def expire(self, snapshot_ids: Sequence[int]) -> dict[str, int]:
        """Remove exactly these snapshots, and the files that only they had; returns the number of each kind of file.

        Iceberg keeps everything younger than `older_than`, on every branch and off them: nothing is older than 1970.
        """
        with java_errors():
            action = self._actions.expireSnapshots(self.java).expireOlderThan(0)
            for each in snapshot_ids:
                action = action.expireSnapshotId(each)
            done = action.execute()
            return {
                "data-files": done.deletedDataFilesCount(),
                "delete-files": done.deletedPositionDeleteFilesCount() + done.deletedEqualityDeleteFilesCount(),
                "manifests": done.deletedManifestsCount(),
                "manifest-lists": done.deletedManifestListsCount(),
            }


@contextmanager
def java_errors() -> Iterator[None]:
    """Raise an error of Spark or the JVM as `LostRace` if another commit won, and as `SparkFailed` otherwise."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        first = text.split("\n", 1)[0]
        if any(sign in text for sign in _CONFLICTS):
            raise LostRace(first) from error
        raise SparkFailed(first) from error


def _jvm(spark: SparkSession) -> Any:
    """The session's JVM; PySpark has no public name for it."""
    return spark._jvm


def _count(items: Any) -> int:
    iterator, count = items.iterator(), 0
    while iterator.hasNext():
        iterator.next()
        count += 1
    return count
