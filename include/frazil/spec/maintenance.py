"""The declared maintenance of a table. Every action has defaults and can be switched off."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import model_validator

from frazil.spec.values import Bytes, Count, CountFromTwo, Model, Percentage, PositiveDuration, Records

_SWITCH = {"on": True, "off": False, "true": True, "false": False}
"""Boolean for each word of a switch: unlike YAML 1.1, frazil's loader reads `on` and `off` as words."""


class SwitchableAction(Model):
    """A maintenance action, which the value `off` disables."""

    enabled: bool = True
    """`false`, or `off` in place of the mapping, switches the action off."""

    @model_validator(mode="before")
    @classmethod
    def _expand_switch(cls, value: object) -> object:
        on = _SWITCH.get(str(value).lower())
        return value if on is None else {"enabled": on}


class Compaction(SwitchableAction):
    """Rewrites the small data files of a partition as few large files."""

    strategy: Literal["binpack", "sort"] = "binpack"
    """`sort` also sorts by the table's sort order, at about twice the cost."""
    budget: Bytes = 20 * 2**30
    """Maximum size of the data files that one run rewrites."""
    min_files: CountFromTwo = 5
    """Number of small files at which a complete partition is rewritten."""
    open_files: CountFromTwo = 200
    """Number of small files at which an open partition is rewritten."""
    fold_files: CountFromTwo | None = None
    """A running writer rewrites this many of its small files in a partition as one. By default, it rewrites none."""
    deleted_rows: Percentage = 20
    """Percentage of deleted rows at which a data file is rewritten; proportionally lower below the target size."""


class Manifests(SwitchableAction):
    """Rewrites many small manifests as few manifests, sorted by partition."""

    max_count: CountFromTwo = 100
    """Number of manifests at which they are rewritten."""


class Expiry(SwitchableAction):
    """Removes old snapshots, and the files that only these snapshots use."""

    keep: PositiveDuration = timedelta(hours=6)
    """How far back queries can time-travel, up to `at-most` snapshots."""
    at_least: Count = 20
    """Number of newest snapshots that are always kept."""
    at_most: Count = 500
    """Maximum number of snapshots kept because of `keep`. Writers expire the oldest once an eighth more exist."""


class Orphans(SwitchableAction):
    """Deletes, once a day, the files below the table's location that no snapshot, journal or backfill references."""

    older_than: PositiveDuration = timedelta(days=3)
    """Minimum age of a file that may be deleted."""
    max_listed: Count = 5_000_000
    """Maximum number of files in the location. With more, nothing is deleted."""
    max_share: Percentage = 20
    """Maximum percentage of files or bytes to delete. If more would be deleted, nothing is."""


class Alerts(SwitchableAction):
    """Thresholds. An alert fires when its value exceeds the threshold for `hold`, and ends when it is well below."""

    hold: PositiveDuration = timedelta(minutes=15)
    """How long a value must exceed its threshold."""
    manifest_list_bytes_per_file: Count = 1_024
    """Bytes of the manifest list per data file."""
    manifests: Count = 500
    """Manifests of the newest snapshot."""
    snapshots: Count = 2_000
    """Snapshots in the metadata."""
    metadata_bytes: Bytes = 8 * 2**20
    """Size of `metadata.json`."""
    small_files: Count = 5_000
    """Number of data files, while their average size is below a tenth of the target size."""
    delete_files: Count = 100
    """Number of delete files. For an upsert table, one for each data file is not counted."""
    deleted_rows: Percentage = 30
    """Percentage of deleted rows in data files."""
    since_compaction: Bytes = 100 * 2**30
    """Bytes added since the last compaction."""
    freshness: PositiveDuration = timedelta(minutes=15)
    """Age of the oldest record that waits in Kafka."""
    lag: Records | None = None
    """Unread records of one stream. By default, this alert is off."""
    late_window: PositiveDuration = timedelta(hours=2)
    """How long a window may stay incomplete after its end and `lateness`."""
    writer_down: PositiveDuration = timedelta(minutes=1)
    """How long a stream that should run may have no writer."""
    stall: PositiveDuration = timedelta(seconds=45)
    """How long a writer may be stalled, or without Kafka, catalog, storage or registry; at most `hold`."""
    restarts: Count = 2
    """Number of times in a row, within an hour, that the writer ended without a commit."""
    waiting_batches: Count = 3
    """Number of batches in the journal without a commit. Shortly after a commit, this alert does not fire."""
    dead_letters: Percentage = 5
    """Percentage of the last records that are dead letters."""
    stale_changes: Percentage = 20
    """Percentage of the last changes that were stale, for `mode: upsert`."""
    dead_letters_per_minute: Count | None = None
    """Dead letters of one error class per minute, averaged over five minutes or the longest commit interval."""
    failed_runs: Count = 1
    """Failed runs of the table's partition DAG in a row."""


MIN_STALE_INTERVALS = 2
"""Minimum number of commit intervals after which a stream can become stale, even if `freshness` is shorter."""


class Maintenance(Model):
    """How the table is maintained. All streams of a table must declare the same maintenance."""

    every: PositiveDuration = timedelta(hours=1)
    """How often Airflow checks whether an action is due."""
    compaction: Compaction = Compaction()
    """Compaction: few large files."""
    manifests: Manifests = Manifests()
    """Rewrites of manifests: few manifests."""
    expiry: Expiry = Expiry()
    """Expiry of snapshots: few snapshots."""
    orphans: Orphans = Orphans()
    """Removal of orphan files."""
    alerts: Alerts = Alerts()
    """Thresholds of alerts."""

    def stale_after_ms(self, longest_interval_ms: int) -> int:
        """Return at least two commit intervals, so that one missed commit does not keep an alert active."""
        return max(self.alerts.freshness // timedelta(milliseconds=1), MIN_STALE_INTERVALS * longest_interval_ms)

    @property
    def limits(self) -> tuple[int | None, int | None, timedelta]:
        """The maximum numbers of snapshots and of manifests (None: unlimited), and the interval of maintenance."""
        return (
            self.expiry.at_most if self.expiry.enabled else None,
            self.manifests.max_count if self.manifests.enabled else None,
            self.every,
        )

    @model_validator(mode="before")
    @classmethod
    def _expand_switch(cls, value: object) -> object:
        on = _SWITCH.get(str(value).lower())
        if on is None:
            return value
        return {} if on else dict.fromkeys(("compaction", "manifests", "expiry", "orphans"), False)
