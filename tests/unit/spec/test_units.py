"""Durations and sizes in the notation of declarations."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.spec.units import format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("250ms", 0.25), ("1h30m", 5400), ("7d", 604_800), ("1.5h", 5400), ("0", 0), ("1m30s", 90)],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["60", "soon", "", "1h 30", "5 minutes", "-5s", "s", "1h30", None, True])
def test_an_invalid_duration_is_refused_with_examples(text: object) -> None:
    with pytest.raises(ValueError, match="250ms"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["100001d", "99999999999999999d", f"{'9' * 400}ms", "100000d1ms"])
def test_a_duration_above_the_maximum_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="at most 100000d"):
        parse_duration(text)
    longest = parse_duration("100000d")
    assert longest.days == 100_000
    assert longest.total_seconds() <= threading.TIMEOUT_MAX, "it can be waited for"


@given(st.integers(min_value=0, max_value=10**12))
def test_a_formatted_duration_is_read_back(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("text", "size"),
    [("128MiB", 128 * 2**20), ("1GB", 10**9), ("1.5KiB", 1536), ("512B", 512), (4096, 4096), ("4096", 4096)],
)
def test_a_size_is_parsed_in_the_units_that_people_write(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["1XB", "big", "", "-1", -1, True, "1 mib", "1.5", 1.5])
def test_an_invalid_size_is_refused_with_examples(text: object) -> None:
    with pytest.raises(ValueError, match="128MiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", [10**30, 2**60 + 1, "1048577TiB", "9" * 5_000])
def test_a_size_that_no_machine_has_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="at most 1048576TiB"):
        parse_bytes(text)


@given(st.integers(min_value=0, max_value=2**60))
def test_a_formatted_size_is_read_back(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size
