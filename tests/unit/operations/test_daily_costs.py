"""The costs of a stream's days, as the operations page reads them."""

from __future__ import annotations

import pytest

from frazil.errors import FrazilError
from frazil.history.points import Point, RecordedHistory
from frazil.operations import fetch
from tests.made_routes import shop


def test_an_unreadable_history_is_an_error_instead_of_zero_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RecordedHistory(problem="cannot read the table: the storage is down")
    monkeypatch.setattr(fetch, "read_history", lambda *_, **__: found)
    with pytest.raises(FrazilError, match="the storage is down"):
        fetch.fetch_daily_costs(shop(route=None))


def test_the_readable_part_of_a_history_has_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RecordedHistory((Point(0, batches=1, cpu_ms=9),), problem="one object is not valid")
    monkeypatch.setattr(fetch, "read_history", lambda *_, **__: found)
    (day,) = fetch.fetch_daily_costs(shop(route=None))
    assert (day.day, day.cost.commits) == ("1970-01-01", 1)
