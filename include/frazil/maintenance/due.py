"""Checks which actions may be useful, from metadata alone: reads no manifest, and starts no JVM. A PySpark application
then counts the files of each partition and decides again. Pure; does not load PyIceberg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from frazil.maintenance.compaction import MIN_DELETES_PER_FILE
from frazil.maintenance.health import ManifestGroup, TableHealth, are_large
from frazil.spec.maintenance import Compaction, Expiry, Maintenance, Manifests, SwitchableAction
from frazil.spec.units import format_count, format_duration
from frazil.timetext import format_elapsed

DEFAULT_MANIFEST_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    spec_ids: tuple[int, ...]
    """The specs whose manifests are rewritten, one after the other."""
    sentence: str


def plan_manifests(
    groups: Sequence[ManifestGroup], settings: Manifests, *, target_bytes: int = DEFAULT_MANIFEST_BYTES
) -> ManifestPlan:
    """Plan to rewrite the manifests of each partition spec with a group that would shrink by half or more. A rewrite
    merges manifests of the same group only. Plans nothing below `max-count`.
    """
    total = sum(group.manifests for group in groups)
    if total < settings.max_count:
        return ManifestPlan((), f"{format_count(total, 'manifest', 'is|are')} fewer than {settings.max_count:,}")
    ideal = {group: max(-(-group.bytes // target_bytes), 1) for group in groups}
    worth = tuple(sorted({group.spec_id for group in groups if 2 * ideal[group] <= group.manifests}))
    if not worth:
        fewest = sum(ideal.values())
        few = f"a rewrite would not halve {format_count(total, 'manifest')}: {fewest:,} would remain"
        return ManifestPlan((), few)
    resulting = sum(ideal[group] if group.spec_id in worth else group.manifests for group in groups)
    return ManifestPlan(worth, f"{format_count(total, 'manifest', 'becomes|become')} about {resulting:,}")


class Action(StrEnum):
    """The maintenance actions, in order. Each leaves less work for the next."""

    COMPACTION = "compaction"
    MANIFESTS = "manifests"
    EXPIRY = "expiry"


def is_enabled(settings: Maintenance, action: Action) -> bool:
    switched: SwitchableAction = getattr(settings, action)
    return switched.enabled


@dataclass(frozen=True, slots=True)
class DueCheck:
    due: bool
    reason: str


def find_due_actions(
    health: TableHealth, settings: Maintenance, *, full_check_at: timedelta | None = None
) -> Mapping[Action, DueCheck]:
    """Return whether each action is due, and why. At `full_check_at`, a daily check does not rely on metadata alone."""
    is_full_check = full_check_at is not None and (
        (timedelta(milliseconds=health.at_ms) - full_check_at) % timedelta(days=1) < settings.every
    )
    manifests = plan_manifests(health.manifest_groups, settings.manifests)
    checks = {
        Action.COMPACTION: _check_compaction(health, settings.compaction, is_full_check=is_full_check),
        Action.MANIFESTS: DueCheck(bool(manifests.spec_ids), manifests.sentence),
        Action.EXPIRY: _check_expiry(health, settings.expiry),
    }
    off = DueCheck(False, "it is switched off")
    return {action: check if is_enabled(settings, action) else off for action, check in checks.items()}


def _check_compaction(health: TableHealth, settings: Compaction, *, is_full_check: bool) -> DueCheck:
    if health.delete_files_per_file >= MIN_DELETES_PER_FILE and (
        not health.merged or _has_many_deletes(health, settings)
    ):
        deletes = f"{format_count(health.delete_files, 'delete file')} for {format_count(health.data_files, 'file')}"
        return DueCheck(True, f"{deletes}, with {health.deleted_percent:.1f} % of the rows deleted")
    if health.data_files < settings.min_files and not health.delete_files:
        return DueCheck(False, f"{format_count(health.data_files, 'file', 'is|are')} few enough")
    if is_full_check:
        return DueCheck(True, "it is checked in full once a day")
    files, size = health.files_since_compaction, health.bytes_since_compaction
    came = "added since the last compaction" if health.last_compaction_at_ms is not None else "not compacted"
    growth = f"{format_count(files, 'file')} of {size / max(files, 1):,.0f} bytes on average {came}"
    if files < settings.min_files or are_large(files, size, health.target_file_bytes):
        return DueCheck(False, f"{growth}: no compaction while they are few or large")
    return DueCheck(True, growth)


def _has_many_deletes(health: TableHealth, settings: Compaction) -> bool:
    """Return whether many rows are deleted (fewer suffice if files are small), or delete files outnumber data files."""
    dangling = health.delete_files > health.data_files
    share = min(health.average_file_bytes / health.target_file_bytes, 1)
    return dangling or 2 * health.deleted_percent >= settings.deleted_rows * share


def _check_expiry(health: TableHealth, settings: Expiry) -> DueCheck:
    """Check the number of all snapshots, and the age of main's oldest one."""
    if health.snapshots > settings.at_most:
        return DueCheck(True, f"{format_count(health.snapshots, 'snapshot', 'is|are')} more than {settings.at_most:,}")
    if health.main_snapshots <= settings.at_least or health.main_oldest_at_ms is None:
        return DueCheck(False, f"{format_count(health.main_snapshots, 'snapshot')} of main, which are always kept")
    age_ms = health.at_ms - health.main_oldest_at_ms
    if age_ms < settings.keep // timedelta(milliseconds=1):
        keep = format_duration(settings.keep)
        reason = f"the oldest snapshot of main is {format_elapsed(age_ms)} old: snapshots are kept for {keep}"
        return DueCheck(False, reason)
    count = format_count(health.main_snapshots, "snapshot")
    return DueCheck(True, f"{count} of main, the oldest {format_elapsed(age_ms)} old")
