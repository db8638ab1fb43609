from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.clock import epoch_ms


@given(st.integers(-62_000_000_000_000, 250_000_000_000_000), st.integers(-1439, 1439))
def test_a_time_keeps_its_millisecond_in_each_zone(ms: int, zone_minutes: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert epoch_ms(moment.astimezone(timezone(timedelta(minutes=zone_minutes)))) == ms


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (datetime(2004, 10, 6, 21, 11, 10, 524_000, tzinfo=UTC), 1_097_097_070_524),  # floats: 523
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=23, minutes=59))), -62_135_683_140_000),
    ],
)
def test_a_time_is_not_a_product_of_floats(moment: datetime, expected: int) -> None:
    assert epoch_ms(moment) == expected
