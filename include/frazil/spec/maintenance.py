"""The declared maintenance of a table. Every action has defaults and can be switched off."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from frazil.spec.values import Bytes, Count, Model, Percentage, PositiveDuration, Records, Several

_SWITCH = {"on": True, "off": False, "true": True, "false": False}
"""YAML 1.1 reads `on` and `off` as booleans, in any case; frazil's loader reads them as words."""


class Switched(Model):
    """An action that `off` switches off."""

    enabled: bool = Field(True, description="`false`, or `off` in place of the mapping, switches this off.")

    @model_validator(mode="before")
    @classmethod
    def _expand_switch(cls, value: object) -> object:
        on = _SWITCH.get(str(value).lower())
        return value if on is None else {"enabled": on}


class Compaction(Switched):
    """Rewrites the small data files of a partition to few large files."""

    strategy: Literal["binpack", "sort"] = Field(
        default="binpack",
        description="`sort` sorts by the table's sort order while it rewrites, at about twice the cost.",
    )
    budget: Bytes = Field(default=20 * 2**30, description="The maximum bytes of data files that one run rewrites.")
    min_files: Several = Field(
        default=5, description="A complete partition with at least this many small files is rewritten."
    )
    open_files: Several = Field(
        default=200,
        description="A partition that is still written to is rewritten only if it has more small files than this.",
    )
    deleted_rows: Percentage = Field(
        default=20,
        description="A data file is rewritten once delete files delete this percentage of its rows.",
    )


class Manifests(Switched):
    """Rewrites many small manifests to few manifests, sorted by partition."""

    most: Several = Field(
        default=100, description="A table with at least this many manifests gets its manifests rewritten."
    )


class Expiry(Switched):
    """Removes old snapshots, and the files that only these snapshots use."""

    keep: PositiveDuration = Field(
        default=timedelta(hours=6),
        description="How far back in time readers can read: younger snapshots are kept, up to `at-most`.",
    )
    at_least: Count = Field(default=20, description="The number of newest snapshots that are always kept.")
    at_most: Count = Field(
        default=500,
        description="The maximum number of snapshots kept only because of `keep`: each snapshot slows down commits. "
        "With a commit every 5 s, 500 snapshots are 41 minutes: raise this if queries take longer.",
    )


class Orphans(Switched):
    """Deletes files below the table's location to which no snapshot, journal or backfill refers, once a day."""

    older_than: PositiveDuration = Field(default=timedelta(days=3), description="Younger files are never deleted.")
    max_listed: Count = Field(
        default=5_000_000, description="With more files than this below the location, nothing is deleted."
    )
    max_share: Percentage = Field(
        default=20, description="If more than this percentage of files or bytes would be deleted, nothing is deleted."
    )


class Alerts(Switched):
    """Thresholds. An alert fires when its value exceeds the threshold for `hold`, and ends when it is well below."""

    hold: PositiveDuration = Field(
        default=timedelta(minutes=15), description="How long a value must stay beyond its threshold."
    )
    manifest_list_bytes_per_file: Count = Field(
        default=1_024, description="Bytes of the manifest list for each data file."
    )
    manifests: Count = Field(default=500, description="Manifests of the newest snapshot, which planning reads.")
    snapshots: Count = Field(
        default=2_000, description="Snapshots in the metadata, which each commit reads and writes."
    )
    metadata_bytes: Bytes = Field(default=8 * 2**20, description="Size of `metadata.json`.")
    small_files: Count = Field(
        default=5_000, description="Number of data files, if their average size is below a tenth of the target size."
    )
    delete_files: Count = Field(
        default=100,
        description="Delete files, which every reader applies. In an upsert table, only delete files beyond one for "
        "each data file count.",
    )
    deleted_rows: Percentage = Field(
        default=30,
        description="Percent of the rows in data files that are deleted: every reader reads them for nothing.",
    )
    since_compaction: Bytes = Field(default=100 * 2**30, description="Bytes added since the last compaction.")
    freshness: PositiveDuration = Field(
        default=timedelta(minutes=15), description="The maximum age of the oldest record that waits in Kafka."
    )
    lag: Records | None = Field(
        default=None, description="Records of one stream that wait in Kafka. By default there is no such alert."
    )
    late_window: PositiveDuration = Field(
        default=timedelta(hours=2),
        description="How long a window may stay incomplete after its end and the streams' lateness.",
    )
    writer_down: PositiveDuration = Field(
        default=timedelta(minutes=1), description="How long a stream that should run may have no running writer."
    )
    stall: PositiveDuration = Field(
        default=timedelta(seconds=45),
        description="How long a writer may be unable to write: stalled, or without Kafka, catalog, storage or schema "
        "registry. `hold` replaces a longer time.",
    )
    restarts: Count = Field(
        default=2, description="How many times in a row, within an hour, the writer may end without a commit."
    )
    waiting_batches: Count = Field(
        default=3, description="Batches that are journaled but not committed, if the last commit is old."
    )
    dead_letters: Percentage = Field(default=5, description="Percentage of the last records that are dead letters.")
    stale_changes: Percentage = Field(
        default=20,
        description="For `mode: upsert`: percentage of the last changes that were dropped because their rows "
        "are newer.",
    )
    dead_letters_per_minute: Count | None = Field(
        default=None,
        description="Dead letters of one error class per minute, averaged over five minutes or the longest commit "
        "interval.",
    )
    failed_runs: Count = Field(
        default=1,
        description="How many times in a row the table's partition DAG may fail.",
    )


MIN_STALE_INTERVALS = 2
"""A stream is never stale within this many of its longest commit intervals, even if `freshness` is shorter."""


class Maintenance(Model):
    """How the table is maintained. Streams that feed the same table must declare the same maintenance."""

    every: PositiveDuration = Field(
        default=timedelta(hours=1), description="How often Airflow checks whether an action is due."
    )
    compaction: Compaction = Field(default=Compaction(), description="Compaction: few large files.")
    manifests: Manifests = Field(default=Manifests(), description="Rewrites of manifests: few manifests.")
    expiry: Expiry = Field(default=Expiry(), description="Expiry of snapshots: few snapshots.")
    orphans: Orphans = Field(default=Orphans(), description="Removal of orphan files.")
    alerts: Alerts = Field(default=Alerts(), description="Thresholds of alerts.")

    def stale_after_ms(self, longest_interval_ms: int) -> int:
        """Return the minimum age of the last commit (ms) at which a stream with unread records is stale.

        It is at least two commit intervals, so that one missed commit does not keep an alert active once the next
        commit is on time.
        """
        return max(self.alerts.freshness // timedelta(milliseconds=1), MIN_STALE_INTERVALS * longest_interval_ms)

    @property
    def kept(self) -> tuple[int | None, int | None, timedelta]:
        """The maximum number of snapshots, that of manifests (None: unlimited), and the interval of maintenance."""
        return (
            self.expiry.at_most if self.expiry.enabled else None,
            self.manifests.most if self.manifests.enabled else None,
            self.every,
        )

    @model_validator(mode="before")
    @classmethod
    def _expand_switch(cls, value: object) -> object:
        """Expand `maintenance: off`, which switches off every action but not the alerts."""
        on = _SWITCH.get(str(value).lower())
        if on is None:
            return value
        return {} if on else dict.fromkeys(("compaction", "manifests", "expiry", "orphans"), False)
