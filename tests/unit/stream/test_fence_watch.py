"""A writer without commits checks its table's marker periodically, and ends if another writer has fenced it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.catalog import Catalog

from frazil.commit.marker import BatchKey
from frazil.errors import Fenced
from frazil.stream.fence_watch import POLL_INTERVAL_S, FenceWatch


class Watched:
    """A table whose marker has an epoch, and a clock that a test moves."""

    def __init__(self) -> None:
        self.epoch: int | None = 3
        self.now = 0.0
        self.loads = 0
        self.broken = False
        self.hangs = False
        self.hanging: list[Callable[[], None]] = []
        self.lost = False
        self.watch = FenceWatch(clock=lambda: self.now, open=self._open, start=self._start)
        self.tables: Any = SimpleNamespace(
            stream="rides", main=SimpleNamespace(catalog_name="lake"), load_marker_with=self._marker
        )

    def _start(self, work: Callable[[], None]) -> None:
        self.hanging.append(work) if self.hangs else work()

    def _open(self, _: str) -> Catalog:
        return cast("Catalog", "an empty catalog" if self.lost else "the catalog")

    def _marker(self, catalog: Catalog) -> Any:
        self.loads += 1
        if self.broken or catalog != "the catalog":
            raise ConnectionError("the catalog is away")
        return None if self.epoch is None else SimpleNamespace(key=BatchKey(self.epoch, 0))

    def check(self, *, after_s: float) -> None:
        self.now += after_s
        self.watch.check(self.tables, epoch=3)
        self.watch.check(self.tables, epoch=3)


def test_the_marker_is_loaded_once_in_a_while_and_not_soon_after_a_commit() -> None:
    watched = Watched()
    watched.check(after_s=POLL_INTERVAL_S - 1)
    assert watched.loads == 0
    for _ in range(10):
        watched.check(after_s=1)
    assert watched.loads == 1
    watched.now += POLL_INTERVAL_S
    watched.watch.postpone()
    watched.check(after_s=1)
    assert watched.loads == 1


@pytest.mark.parametrize(("epoch", "said"), [(4, "was replaced by epoch 4"), (None, "was forgotten")])
def test_a_replaced_writer_or_a_writer_of_a_forgotten_stream_ends(epoch: int | None, said: str) -> None:
    watched = Watched()
    watched.epoch = epoch
    with pytest.raises(Fenced, match=said):
        watched.check(after_s=POLL_INTERVAL_S)


def test_a_catalog_that_does_not_answer_ends_no_idle_writer() -> None:
    watched = Watched()
    watched.broken = True
    watched.check(after_s=POLL_INTERVAL_S)
    watched.broken, watched.epoch = False, 4
    watched.check(after_s=1)
    with pytest.raises(Fenced):
        watched.check(after_s=POLL_INTERVAL_S)


def test_a_catalog_whose_file_was_missing_is_opened_again() -> None:
    watched = Watched()
    watched.lost = True
    watched.check(after_s=POLL_INTERVAL_S)
    watched.lost, watched.epoch = False, 4
    with pytest.raises(Fenced):
        watched.check(after_s=POLL_INTERVAL_S)


def test_a_hanging_catalog_is_queried_once_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.hangs = True
    for _ in range(3):
        watched.check(after_s=POLL_INTERVAL_S)
    assert (len(watched.hanging), watched.loads) == (1, 0)
    (said,) = caplog.messages
    assert said.startswith("the catalog 'lake' has not answered for 30 s, so the writer cannot check")
    watched.epoch = 4
    watched.hanging[0]()
    with pytest.raises(Fenced):
        watched.check(after_s=0)
