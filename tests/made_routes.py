"""Makes batches of a stream with a route, without Kafka. The real code commits them to all tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from frazil.commit.committer import Committer
from frazil.commit.followers import Followers
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker
from frazil.ingest.contract import RangeProgress, StagedFile, Target
from frazil.spec.model import StreamSpec
from frazil.stream.routed_tables import RoutedTables, create_missing_table
from frazil.table.catalogs import load_catalog
from tests.made_batches import MadeStream


def shop(**more: Any) -> StreamSpec:
    """Return a stream with the default table `shop.other`. `more` are further keys of its declaration."""
    route = {"by": "field", "name": "kind", "tables": {"order": "shop.orders"}, "template": "shop.raw_{value}"}
    return StreamSpec.model_validate(
        {
            "name": "shop",
            "source": {"topics": ["shop"], "format": "json", "bootstrap-servers": "127.0.0.1:1"},
            "table": "shop.other",
            "schema": {"kind": "string", "at": "timestamptz"},
            "event-time": "at",
            "route": route,
            **more,
        }
    )


@dataclass
class MadeRoute(MadeStream):
    """A stream with a route that reads one topic of one partition."""

    partitions: int = 1
    followers: Followers | None = field(default=None, init=False)
    at: int = field(default=0, init=False)
    """The offset of the next record."""
    absent: Collection[Target] = field(default=(), init=False)
    """Tables whose rows wait next to the default table."""

    def begin(self) -> Committer:
        """Take the stream over."""
        committer = super().begin()
        make = partial(create_missing_table, self.spec, self.tables)
        self.followers = committer.followers = Followers.load(self.tables, self.home(), make)
        return committer

    def begin_route(self, *values: str) -> RoutedTables:
        """Take over the stream, and create the tables of these route values."""
        if self.spec.route is None:
            raise AssertionError("a stream without a route")
        self.begin()
        home = self.home()
        routed = RoutedTables(self.spec, self.spec.route, load_catalog(self.spec.table.catalog), self.tables)
        routed.open(home)
        routed.create_tables(values, home)
        return routed

    def home(self) -> Marker:
        found = self.tables.marker()
        if found is None:
            raise AssertionError("the stream has not begun")
        return found

    def batch(self, rows: Mapping[Target, int], *, rejected: int = 0, at_us: int | None = None) -> Journal:
        """Journal a batch with that many rows for each table, in order, and commit it to the default table.

        `follow` commits the other tables' rows. `at_us` is the event time of all rows, in microseconds since 1970;
        without it, they have none.
        """
        if at_us is not None:
            self.columns = lambda count: {"at": pa.array([at_us] * count).cast(pa.timestamp("us", "UTC"))}
        if self.committer is None or self.followers is None:
            raise AssertionError("begin_route first")
        key = BatchKey(self.committer.epoch, self.home().key.batch + 1)
        begin, files = self.at, list[StagedFile]()
        for target, count in {**rows, "dead-letters": rejected}.items():
            offsets = {0: np.arange(self.at, self.at + count)}
            if target in self.absent:
                folder = self.tables.waiting_folder(key)
                files += self.write(self.tables.main.refresh(), key, target, offsets, folder=folder)
            else:
                files += self.write(self.tables.handle(target).refresh(), key, target, offsets)
            self.at += count
        progress = RangeProgress(self.topic, 0, begin, self.at, sum(rows.values()), rejected, at_us)
        journal = Journal(
            stream=self.spec.name,
            key=key,
            table_uuid=str(self.tables.main.refresh().metadata.table_uuid),
            created_at_ms=self.now_ms,
            source=self.source,
            progress=(progress,),
            files=tuple(files),
            newest_dead_letters=self.committer.newest_dead_letters(),
            idle=frozenset(),
            offsets_after={progress.topic_partition: progress.end},
        )
        if not self.tables.journals.put(journal):
            raise RuntimeError(f"batch {key} was journaled already")
        self.committer.commit(journal)
        return journal

    def follow(self) -> None:
        """Commit all waiting rows to their tables."""
        if self.followers is not None:
            self.followers.commit()

    def run(self, rows: Mapping[Target, int], *, rejected: int = 0, at_us: int | None = None) -> Journal:
        """Write a whole batch: `batch`, then `follow`."""
        journal = self.batch(rows, rejected=rejected, at_us=at_us)
        self.follow()
        return journal
