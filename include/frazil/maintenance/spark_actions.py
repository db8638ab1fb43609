"""Runs planned actions of Iceberg's Java API on one table. Raises `LostRace` if another commit prevents one."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import DecimalType, IcebergType, TimestampType, TimestamptzType, TimeType, UUIDType
from pyspark.errors import PySparkException

from frazil.commit.expiry import READER_TAG_PREFIX
from frazil.commit.history import COMPACTION_OPERATION
from frazil.commit.staging_targets import target_file_bytes
from frazil.maintenance.compaction import Rewrite, group_into_actions
from frazil.partitions.windows import EPOCH
from frazil.spark.java import find_root_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
log = logging.getLogger(__name__)

HISTORY_TAG = f"{READER_TAG_PREFIX}compaction"
"""The tag of the snapshot from which a compaction began."""
MAX_GROUP_FILES = 16
"""Maximum size of a file group, in target file sizes."""
MAX_BUSY_ATTEMPTS = 3
_CONFLICT_TEXTS = ("CommitFailedException", "ValidationException", "Still referenced by refs")
"""Texts in Iceberg's messages about a conflict. The last one is about the expiry of a tagged snapshot."""


class LostRace(Exception):
    """Another commit won. This action changed nothing."""


class SparkFailed(Exception):
    """An error in the JVM other than `LostRace`."""


@dataclass(frozen=True, slots=True)
class RewriteResult:
    removed: int = 0
    added: int = 0
    bytes: int = 0
    """Size of the removed files."""
    failed: int = 0
    """Files in jobs that failed before their commit."""
    lost: tuple[str, ...] = ()
    """Messages of the actions that lost against another commit."""
    errors: tuple[str, ...] = ()
    """Messages of the actions that failed for other reasons."""

    def __add__(self, other: RewriteResult) -> RewriteResult:
        return RewriteResult(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class SparkTable:
    """A table in this session's JVM, with the metadata on which the plan is based."""

    spark: SparkSession
    table: Table
    java: Any

    @classmethod
    def load(cls, spark: SparkSession, catalog: Catalog, table: Table) -> SparkTable:
        name = ".".join(f"`{part}`" for part in (catalog.name, *table.name()))
        with convert_java_errors():
            java = _jvm(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
            java.refresh()  # the session's catalog caches tables
        return cls(spark, table, java)

    @property
    def _actions(self) -> Any:
        return _jvm(self.spark).org.apache.iceberg.spark.actions.SparkActions.get(self.spark._jsparkSession)

    @contextmanager
    def keep_history(self) -> Iterator[None]:
        """Tag the current snapshot, so that writers do not expire this and newer snapshots. Iceberg refuses a rewrite
        if a snapshot since its start has expired. A killed compaction's tag is replaced by the next one.
        """
        with convert_java_errors():
            refs, change = self.java.refs(), self.java.manageSnapshots()
            tag = change.replaceTag if refs.containsKey(HISTORY_TAG) else change.createTag
            tag(HISTORY_TAG, self.java.currentSnapshot().snapshotId()).commit()
        try:
            yield
        finally:
            try:
                with convert_java_errors():
                    self.java.manageSnapshots().removeTag(HISTORY_TAG).commit()
            except (LostRace, SparkFailed) as error:
                log.warning(
                    "cannot remove the tag %s, which keeps snapshots until the next compaction: %s", HISTORY_TAG, error
                )

    def rewrite(self, rewrites: Sequence[Rewrite], *, sort: bool) -> RewriteResult:
        """Rewrite files of partitions, in several actions. A failed action does not stop the others."""
        actions = group_into_actions(rewrites, target=target_file_bytes(self.table))
        return sum((self._attempt(action, sort=sort) for action in actions), RewriteResult())

    def _attempt(self, batch: Sequence[Rewrite], *, sort: bool) -> RewriteResult:
        """Run one action. If it loses against merges into busy partitions, run it again at once."""
        total = RewriteResult()
        for attempts_left in reversed(range(MAX_BUSY_ATTEMPTS if batch[0].busy else 1)):
            try:
                result = self._rewrite(batch, sort=sort)
            except LostRace as conflict:
                result = RewriteResult(lost=(str(conflict),))
            except SparkFailed as error:
                result = RewriteResult(errors=(str(error),))
            total = replace(total + result, lost=result.lost)
            if not (result.lost and attempts_left):
                break
            with convert_java_errors():
                self.java.refresh()
        return total

    def _rewrite(self, batch: Sequence[Rewrite], *, sort: bool) -> RewriteResult:
        metadata, options = self.table.metadata, self._options(batch)
        chosen = [r.partition.values for r in batch]
        with convert_java_errors():
            begun = self.java.currentSnapshot().snapshotId()
            action = self._actions.rewriteDataFiles(self.java)
            action = action.sort() if sort else action.binPack()
            row_filter = build_partition_filter(
                _jvm(self.spark), chosen, spec=metadata.spec(), schema=metadata.schema()
            )
            action = action.filter(row_filter)
            for key, value in options.items():
                action = action.option(key, value)
            result = action.snapshotProperty("frazil.operation", COMPACTION_OPERATION).execute()
            removed, failed = result.rewrittenDataFilesCount(), result.failedDataFilesCount()
            may_have_lost = not failed and (not removed or (len(batch) > 1 and batch[0].busy))
            groups = self._count_groups(row_filter, options, begun) if may_have_lost else 0
            lost = ("its commits failed",) if groups > result.rewriteResults().size() else ()
        return RewriteResult(removed, result.addedDataFilesCount(), result.rewrittenBytesCount(), failed, lost)

    def _count_groups(self, row_filter: Any, options: dict[str, str], snapshot_id: int) -> int:
        """Return how many groups of files the action had to rewrite. Iceberg does not report failed partial commits."""
        planner = _jvm(self.spark).org.apache.iceberg.actions.BinPackRewriteFilePlanner
        file_planner = planner(self.java, row_filter, snapshot_id, True)
        file_planner.init(options)
        return int(file_planner.plan().totalGroupCount())

    def _options(self, batch: Sequence[Rewrite]) -> dict[str, str]:
        target, rewrite = target_file_bytes(self.table), batch[0]
        options: dict[str, object] = {
            "target-file-size-bytes": target,
            "min-input-files": 2,  # the plan has decided already
            "max-file-size-bytes": 2**62,  # large files are fine
            "partial-progress.enabled": "true",
            "max-file-group-size-bytes": MAX_GROUP_FILES * target,
            "max-concurrent-file-group-rewrites": self.spark.sparkContext.defaultParallelism,
            "rewrite-job-order": "files-desc",
            "use-starting-sequence-number": "true",  # concurrent deletes still apply to the rewritten rows
            "delete-ratio-threshold": (100 if rewrite.deleted_percent is None else rewrite.deleted_percent) / 100,
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
                "max-file-group-size-bytes": min(MAX_GROUP_FILES * target, limit),
            }
        if rewrite.applies_deletes or rewrite.all_deletes:
            options["delete-file-threshold"] = 1
        if rewrite.applies_deletes:
            options["remove-dangling-deletes"] = "true"
        return {key: str(value) for key, value in options.items()}

    def drop_deletes(self, paths: Collection[str]) -> int:
        """Remove all these delete files, which have no data files. Returns their number."""
        files, remaining = _jvm(self.spark).org.apache.iceberg.ManifestFiles, set(paths)
        with convert_java_errors():
            self.java.refresh()
            change = self.java.newRewrite()
            for manifest in self.java.currentSnapshot().deleteManifests(self.java.io()):
                entries = files.readDeleteManifest(manifest, self.java.io(), self.java.specs())
                iterator = entries.iterator()
                while remaining and iterator.hasNext():
                    file = iterator.next()
                    if (path := file.location()) in remaining:
                        change.deleteFile(file)
                        remaining.remove(path)
                entries.close()
            if len(remaining) < len(paths):
                change.set("frazil.operation", COMPACTION_OPERATION).commit()
        return len(paths) - len(remaining)

    def rewrite_manifests(self, spec_id: int) -> tuple[int, int]:
        with convert_java_errors():
            action = self._actions.rewriteManifests(self.java).specId(spec_id)
            result = action.option("use-caching", "false").snapshotProperty("frazil.operation", "manifests").execute()
            return (_count_items(result.rewrittenManifests()), _count_items(result.addedManifests()))

    def expire(self, snapshot_ids: Sequence[int]) -> dict[str, int]:
        """Expire snapshots with the files that only they reference. Returns the number of files by kind."""
        with convert_java_errors():
            action = self._actions.expireSnapshots(self.java).expireOlderThan(0)  # no snapshot is older than 1970
            for each in snapshot_ids:
                action = action.expireSnapshotId(each)
            result = action.execute()
            return {
                "data-files": result.deletedDataFilesCount(),
                "delete-files": result.deletedPositionDeleteFilesCount() + result.deletedEqualityDeleteFilesCount(),
                "manifests": result.deletedManifestsCount(),
                "manifest-lists": result.deletedManifestListsCount(),
            }


@contextmanager
def convert_java_errors() -> Iterator[None]:
    """Convert errors of Spark or the JVM to `LostRace` if another commit won, else to `SparkFailed`."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        first, cause = text.split("\n", 1)[0], find_root_cause(str(error))
        first = first if not cause or cause in first else f"{first}: caused by {cause}"
        if any(sign in text for sign in _CONFLICT_TEXTS):
            raise LostRace(first) from error
        raise SparkFailed(first) from error


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm  # PySpark has no public attribute for it


def _count_items(items: Any) -> int:
    iterator, count = items.iterator(), 0
    while iterator.hasNext():
        iterator.next()
        count += 1
    return count


def build_partition_filter(
    jvm: Any, partitions: Sequence[tuple[object, ...]], *, spec: PartitionSpec, schema: Schema
) -> Any:
    """Build a Java `Expression` that selects exactly the files of partitions of one spec, by their values in manifests.
    Compares terms such as `day(ts) = 16070`: SQL has no `bucket` or `truncate`, and a range would select neighbours.
    """
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    each = (
        reduce(
            getattr(expressions, "and"),
            (_equal(jvm, field, value, schema) for field, value in zip(spec.fields, values, strict=True)),
            expressions.alwaysTrue(),
        )
        for values in partitions
    )
    return reduce(getattr(expressions, "or"), each, expressions.alwaysFalse())


def _equal(jvm: Any, field: PartitionField, value: object, schema: Schema) -> Any:
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    transform = field.transform
    if isinstance(transform, VoidTransform):  # its column may have been dropped
        return expressions.alwaysTrue()
    column = expressions.ref(schema.find_column_name(field.source_id))
    if isinstance(transform, TruncateTransform) and isinstance(value, str | bytes):
        return _begins_with(expressions, column, value, width=transform.width)
    term = column
    if not isinstance(transform, IdentityTransform):
        java_transform = jvm.org.apache.iceberg.transforms.Transforms.fromString(str(transform))
        term = expressions.transform(column.name(), java_transform)
    if value is None:
        return expressions.isNull(term)
    if isinstance(value, float) and math.isnan(value):
        return expressions.isNaN(term)
    keeps_type = isinstance(transform, IdentityTransform | TruncateTransform)
    return expressions.equal(term, to_literal(value, schema.find_type(field.source_id)) if keeps_type else value)


def _begins_with(expressions: Any, column: Any, value: str | bytes, *, width: int) -> Any:
    """Compare a truncated value as a prefix, because Iceberg 1.12 would compare it with a file's full bounds."""
    if len(value) < width:  # a shorter value was not truncated
        return expressions.equal(column, value)
    if isinstance(value, str):
        return expressions.startsWith(column, value)
    lowest, prefix = expressions.greaterThanOrEqual(column, value), value.rstrip(b"\xff")
    if not prefix:
        return lowest
    return getattr(expressions, "and")(lowest, expressions.lessThan(column, prefix[:-1] + bytes([prefix[-1] + 1])))


def to_literal(value: Any, kind: IcebergType) -> object:
    """Convert a value for Iceberg's literals. Times become text, because py4j may send them with a wrong type."""
    if isinstance(kind, TimestampType | TimestamptzType) and isinstance(value, int):
        moment = EPOCH + timedelta(microseconds=value)
        return (moment if isinstance(kind, TimestamptzType) else moment.replace(tzinfo=None)).isoformat()
    if isinstance(kind, TimeType) and isinstance(value, int):
        return (EPOCH + timedelta(microseconds=value)).time().isoformat()
    return str(value) if isinstance(kind, DecimalType | UUIDType) else value
