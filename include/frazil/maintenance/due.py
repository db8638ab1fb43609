"""A first look, without a JVM and without a manifest: which actions can be worth a run of the PySpark app at all.

It never decides what is done: the app measures deeply and decides anew. Pure, and it loads no PyIceberg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from frazil.maintenance.health import TableHealth
from frazil.maintenance.manifests import plan_manifests
from frazil.spec.maintenance import Compaction, Expiry, Maintenance, Switched

LOOK_AGAIN = timedelta(days=1)
"""What a run left for its budget, or as too few files, is looked at again at least so often."""


class Action(StrEnum):
    """In the order in which one run does them: each makes the next one's work less."""

    COMPACTION = "compaction"
    MANIFESTS = "manifests"
    EXPIRY = "expiry"


def enabled(settings: Maintenance, action: Action) -> bool:
    """An action is named as its settings are."""
    switched: Switched = getattr(settings, action)
    return switched.enabled


@dataclass(frozen=True, slots=True)
class Due:
    due: bool
    reason: str


def due(health: TableHealth, settings: Maintenance) -> Mapping[Action, Due]:
    """Of a shallow measurement."""
    looks = {
        Action.COMPACTION: _compaction(health, settings.compaction),
        Action.MANIFESTS: _manifests(health, settings),
        Action.EXPIRY: _expiry(health, settings.expiry),
    }
    off = Due(False, "it is switched off")
    return {action: look if enabled(settings, action) else off for action, look in looks.items()}


def _compaction(health: TableHealth, settings: Compaction) -> Due:
    if health.delete_files:
        return Due(True, f"there are {health.delete_files:,} delete files")
    small = health.average_file_bytes < health.target_file_bytes * 3 // 4
    if health.data_files < settings.min_files or not small:
        files = f"{health.data_files:,} files of {health.average_file_bytes:,.0f} bytes on average"
        return Due(False, f"{files}: few enough, or large enough")
    if health.files_since_compaction >= settings.min_files:
        return Due(True, f"{health.files_since_compaction:,} files came since the last compaction")
    last_ms = health.last_compaction_at_ms
    if last_ms is None or health.at_ms - last_ms >= LOOK_AGAIN // timedelta(milliseconds=1):
        return Due(True, "it was not looked at for a day")
    return Due(False, f"{health.files_since_compaction:,} files came since the last compaction: fewer than it takes")


def _manifests(health: TableHealth, settings: Maintenance) -> Due:
    plan = plan_manifests({0: (health.manifests, health.manifests_bytes)}, settings.manifests)
    return Due(bool(plan.spec_ids), plan.sentence)


def _expiry(health: TableHealth, settings: Expiry) -> Due:
    if health.snapshots <= settings.at_least or health.oldest_snapshot_at_ms is None:
        return Due(False, f"{health.snapshots:,} snapshots are no more than are always kept")
    age = timedelta(milliseconds=health.at_ms - health.oldest_snapshot_at_ms)
    if age < settings.keep and health.snapshots <= settings.at_most:
        return Due(False, f"the oldest snapshot is {age} old: {settings.keep} are kept")
    return Due(True, f"{health.snapshots:,} snapshots, the oldest {age} old")
