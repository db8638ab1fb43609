"""Open windows: laws over all watermarks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frazil.partitions.completeness import MAX_AHEAD_US, Alignment, Feed, complete_until_us
from frazil.partitions.windows import Grain, Window

moments = st.integers(-(10**16), 10**16)
alignments = st.builds(Alignment, st.just("ts"), st.sampled_from(Grain), st.integers(0, 10**11))
HOUR_US = Grain.HOUR.us


@given(alignments, moments, moments, st.none() | moments)
def test_rows_of_complete_windows_never_wait_and_others_wait_unless_absurdly_far_ahead(
    align: Alignment, us: int, watermark_us: int, newest_us: int | None
) -> None:
    window = Window.containing(us, align.grain)
    start_us = Grain.HOUR.floor(us)
    waits = align.waits(start_us, HOUR_US, watermark_us=watermark_us, newest_us=newest_us)
    bound = complete_until_us((Feed("s", watermark_us, align.lateness_us),))
    assert bound is not None
    known_us = watermark_us if newest_us is None else max(watermark_us, newest_us)
    ahead = start_us - known_us > MAX_AHEAD_US
    assert waits == (window.end_us > bound and not ahead)


@given(alignments, moments)
def test_all_rows_wait_while_no_watermark_and_no_event_time_is_known(align: Alignment, us: int) -> None:
    assert align.waits(Grain.HOUR.floor(us), HOUR_US, watermark_us=None, newest_us=None)


@given(alignments, moments)
def test_files_of_a_coarser_partition_wait_until_its_end(align: Alignment, us: int) -> None:
    start_us = Grain.DAY.floor(us)
    end_us = start_us + Grain.DAY.us
    for early_us, expected in ((1, True), (0, False)):
        watermark_us = end_us + align.lateness_us - early_us
        assert align.waits(start_us, Grain.DAY.us, watermark_us=watermark_us, newest_us=None) is expected
