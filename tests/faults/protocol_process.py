"""One writer process in the model of upserts and routes, step by step. It may be paused between any two steps."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

from pyroaring import BitMap64

from frazil.commit.committer import Committer
from frazil.commit.followers import Followers
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.settle import highest_epoch, settle
from frazil.commit.sweep import delete_fenced_batch, sweep_batch
from frazil.errors import Fenced
from frazil.ingest.contract import RangeProgress
from frazil.stream.route import StreamRoute
from frazil.stream.routed_tables import create_missing_table

from .protocol_faults import Faults
from .protocol_tables import BAD, NOW_MS, SOURCE, STREAM, TP, World


class Process:
    """Does around the committer what `frazil.stream.writer` and `frazil.stream.batch` do."""

    def __init__(self, world: World, meanwhile: Any = lambda: None) -> None:
        self.world, self.faults = world, Faults(meanwhile, STREAM)
        self.tables, self.catalog = world.tables(self.faults)
        self.committer: Committer | None = None
        self.route: StreamRoute | None = None
        self.marker: Marker | None = None
        """The marker; None before it began, and after its batch was stale."""
        self.staged: Journal | None = None
        self.journaled = False
        self.decided = False
        """Whether the default table has the batch, which its tables may not have."""

    @property
    def epoch(self) -> int | None:
        return self.committer.epoch if self.committer else None

    @property
    def began(self) -> bool:
        return self.marker is not None

    def begin(self) -> None:
        self.stale()
        self.committer = Committer.take_over(
            self.tables,
            source=SOURCE,
            initial=lambda: {TP: 0},
            first_epoch=1 + highest_epoch(self.tables),
            after=self.epoch,
            load_followers=partial(
                Followers.load, self.tables, make=partial(create_missing_table, self.world.spec, self.tables)
            ),
        )
        settle(self.tables, self.committer)
        marker = self.tables.marker()
        assert marker is not None
        with mock.patch("frazil.stream.route.load_catalog", return_value=self.catalog):
            self.route = StreamRoute.begin(
                self.world.spec, self.tables, marker, self.committer.followers, lambda _: None
            )
        self.marker = marker

    def stale(self) -> None:
        """Abandon the current batch. The next step begins an epoch."""
        self.marker, self.staged, self.journaled, self.decided = None, None, False, False

    def stage(self, limit: int, *, leftover: bool) -> bool:
        """Stage up to `limit` records. Return False if there are none. `leftover` adds a failed attempt's files."""
        assert self.committer is not None
        assert self.marker is not None
        start = self.marker.offsets[TP]
        end = min(start + limit, len(self.world.log))
        if start == end:
            return False
        key = BatchKey(self.committer.epoch, self.marker.key.batch + 1)
        held = BitMap64.deserialize(self.committer.existing_dead_letters(self.marker).get(TP, BitMap64().serialize()))
        offsets = [offset for offset in range(start, end) if offset not in held]
        for _ in range(2 if leftover else 1):
            files = self.world.stage(self.tables, key, offsets)
        bad = sum(self.world.log[offset] == BAD for offset in range(start, end))
        self.staged = Journal(
            stream=STREAM,
            key=key,
            table_uuid=str(self.tables.main.current().metadata.table_uuid),
            created_at_ms=NOW_MS,
            source=SOURCE,
            progress=(RangeProgress(*TP, start, end, end - start - bad, bad, None),),
            files=files,
            newest_dead_letters=self.committer.newest_dead_letters(),
            idle=frozenset(),
            offsets_after={TP: end},
        )
        self.journaled = self.decided = False
        return True

    def journal(self) -> bool:
        assert self.staged is not None
        self.journaled = self.tables.journals.put(self.staged)
        if not self.journaled:
            delete_fenced_batch(self.tables, self.staged.key)
        return self.journaled

    def commit(self) -> None:
        """Commit to the default table. The routed tables follow in the next step."""
        assert self.staged is not None
        assert self.committer is not None
        try:
            self.marker = self.committer.commit(self.staged)
        except Fenced:
            delete_fenced_batch(self.tables, self.staged.key)
            raise
        self.decided = True

    def follow(self) -> None:
        assert self.staged is not None
        if self.route:
            self.route.commit_batch()
        sweep_batch(self.tables, self.staged)
        self.staged, self.journaled, self.decided = None, False, False
