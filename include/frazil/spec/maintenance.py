"""The declared maintenance of a table: every action has defaults and can be switched off."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from frazil.spec.values import Bytes, Count, Model, Percentage, PositiveDuration, Records, Several

_SWITCH = {"on": True, "off": False, "true": True, "false": False}
"""YAML 1.1 reads on and off as booleans, in any case; our loader reads them as words."""


class Switched(Model):
    """An action that `off` switches off."""

    enabled: bool = Field(True, description="`false`, or `off` in place of the mapping, switches it off.")

    @model_validator(mode="before")
    @classmethod
    def _switch_alone(cls, value: object) -> object:
        on = _SWITCH.get(str(value).lower())
        return value if on is None else {"enabled": on}


class Compaction(Switched):
    """Rewrites small data files of a partition to few large ones."""

    strategy: Literal["binpack", "sort"] = Field(
        default="binpack",
        description="`sort` sorts by the table's sort order while it rewrites, at about twice the cost.",
    )
    budget: Bytes = Field(default=20 * 2**30, description="The most bytes of data files that one run rewrites.")
    min_files: Several = Field(
        default=5, description="A complete partition is rewritten from this many small files on."
    )
    open_files: Several = Field(
        default=200, description="A partition that is still written to is left alone up to this many small files."
    )
    deleted_rows: Percentage = Field(
        default=20,
        description="A data file is rewritten once this percentage of its rows is deleted by delete files.",
    )


class Manifests(Switched):
    """Rewrites many small manifests to few, sorted by partition."""

    most: Several = Field(default=100, description="From this many manifests on, they are rewritten.")


class Expiry(Switched):
    """Removes old snapshots, with the files that only they had."""

    keep: PositiveDuration = Field(
        default=timedelta(hours=6),
        description="How long readers may go back, within `at-most`: younger snapshots are kept.",
    )
    at_least: Count = Field(default=20, description="How many of the newest snapshots are always kept.")
    at_most: Count = Field(
        default=500,
        description="Snapshots kept for `keep` alone at most: commits slow down with them. At one every 5 s, "
        "500 are 41 minutes: raise it where queries take longer.",
    )


class Orphans(Switched):
    """Deletes files below the table's location that no snapshot, journal or backfill refers to, once a day."""

    older_than: PositiveDuration = Field(default=timedelta(days=3), description="Younger files are left alone.")
    max_listed: Count = Field(
        default=5_000_000, description="With more files than this below the location, nothing is deleted."
    )
    max_share: Percentage = Field(
        default=20, description="If more than this percentage of files or bytes would go, nothing does."
    )


class Alerts(Switched):
    """Thresholds. An alert fires when its value stays beyond one for `hold`, and ends when it is well below again."""

    hold: PositiveDuration = Field(
        default=timedelta(minutes=15), description="How long a value must stay beyond its threshold."
    )
    manifest_list_bytes_per_file: Count = Field(
        default=1_024, description="Bytes of the manifest list for each data file."
    )
    manifests: Count = Field(default=500, description="Manifests of the newest snapshot: what planning reads.")
    snapshots: Count = Field(default=2_000, description="Snapshots in the metadata: what commits carry.")
    metadata_bytes: Bytes = Field(default=8 * 2**20, description="Size of `metadata.json`.")
    small_files: Count = Field(
        default=5_000, description="Data files while they are on average below a tenth of the target size."
    )
    delete_files: Count = Field(
        default=100,
        description="Delete files, which every reader applies. In a merged table, only those beyond one for "
        "each data file.",
    )
    deleted_rows: Percentage = Field(
        default=30,
        description="Percent of the rows in data files that are deleted: every reader reads them for nothing.",
    )
    since_compaction: Bytes = Field(default=100 * 2**30, description="Bytes added since the last compaction.")
    freshness: PositiveDuration = Field(
        default=timedelta(minutes=15), description="How long ago the last commit may be while records wait in Kafka."
    )
    lag: Records | None = Field(
        default=None, description="Records of one stream that wait in Kafka. Not judged unless it is declared."
    )
    late_window: PositiveDuration = Field(
        default=timedelta(hours=2),
        description="How long after its end, and the streams' lateness, a window may not be complete.",
    )
    writer_down: PositiveDuration = Field(
        default=timedelta(minutes=5), description="How long a stream that should run may have no running writer."
    )
    restarts: Count = Field(
        default=3, description="How often in a row, within an hour, the writer may end without a commit."
    )
    waiting_batches: Count = Field(
        default=3, description="Batches that are journaled but not committed, when the last commit is long ago."
    )
    dead_letters: Percentage = Field(
        default=5, description="Percent of the records of the last hour that are dead letters."
    )
    stale_changes: Percentage = Field(
        default=20,
        description="Percent of the changes of the last hour that were dropped as older than their rows; for "
        "`mode: upsert`.",
    )
    dead_letters_per_minute: Count | None = Field(
        default=None,
        description="Dead letters of one error class a minute, the mean of five minutes or of the longest "
        "commit interval.",
    )
    failed_runs: Count = Field(
        default=1,
        description="How often in a row the table's partition DAG may fail.",
    )


STALE_INTERVALS = 2
"""A stream is not stale before this many of its longest commit intervals, whatever `freshness` says."""


class Maintenance(Model):
    """How the table is kept in shape. Streams that feed one table declare the same."""

    every: PositiveDuration = Field(
        default=timedelta(hours=1), description="How often Airflow checks whether there is anything to do."
    )
    compaction: Compaction = Field(default=Compaction(), description="Few large files.")
    manifests: Manifests = Field(default=Manifests(), description="Few manifests.")
    expiry: Expiry = Field(default=Expiry(), description="Few snapshots.")
    orphans: Orphans = Field(default=Orphans(), description="No orphan files.")
    alerts: Alerts = Field(default=Alerts(), description="When an alert fires.")

    def stale_after_ms(self, longest_interval_ms: int) -> int:
        """How old the last commit may be while records wait: one commit in time must clear what a missed one raised."""
        return max(self.alerts.freshness // timedelta(milliseconds=1), STALE_INTERVALS * longest_interval_ms)

    @property
    def kept(self) -> tuple[int | None, int | None, timedelta]:
        """Number of snapshots and manifests that maintenance leaves (None if unlimited), and its interval."""
        return (
            self.expiry.at_most if self.expiry.enabled else None,
            self.manifests.most if self.manifests.enabled else None,
            self.every,
        )

    @model_validator(mode="before")
    @classmethod
    def _switch_alone(cls, value: object) -> object:
        """`maintenance: off` switches every action off except the alerts."""
        on = _SWITCH.get(str(value).lower())
        if on is None:
            return value
        return {} if on else dict.fromkeys(("compaction", "manifests", "expiry", "orphans"), False)
