"""The page's charts, drawn from given points without a server: each value is at its height, or is marked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import frazil.airflow.page

STATIC = Path(frazil.airflow.page.__file__).parent / "static"
NOW = 1_800_000_000_000
MINUTE_MS = 60_000
DRAW = """async ({points, options, say}) => {
    const [{ timeline }, format] = await Promise.all([import("/timeline.js"), import("/format.js")]);
    document.body.replaceChildren(timeline(points, { ...options, say: format[say] }));
}"""


@pytest.fixture(scope="module")
def shared_page(browser: Browser) -> Page:
    page = browser.new_page()
    page.route("http://page.test/*", lambda route: route.fulfill(path=STATIC / route.request.url.rsplit("/", 1)[1]))
    page.goto("http://page.test/index.html", wait_until="commit")
    return page


@pytest.fixture
def page(shared_page: Page) -> Page:
    shared_page.set_viewport_size({"width": 640, "height": 300})
    shared_page.mouse.move(0, 0)
    shared_page.set_content('<link rel="stylesheet" href="/page.css"><body></body>')
    return shared_page


def draw(page: Page, *values: float, say: str = "rate", every_ms: int = MINUTE_MS, **options: Any) -> None:
    first = NOW - len(values) * every_ms
    points = [{"at": first + n * every_ms, "value": value} for n, value in enumerate(values)]
    page.evaluate(DRAW, {"points": points, "options": {"title": "It", "now": NOW, **options}, "say": say})


def heights(page: Page) -> list[float]:
    return [float(bar.get_attribute("height") or "nan") for bar in page.locator("rect.bar").all()]


STEADY = [50.0] * 59


def test_a_rate_spike_is_clipped_with_its_value_so_that_other_bars_stay_readable(
    page: Page,
) -> None:
    draw(page, *STEADY[:30], 100_000, *STEADY[:29], bars=True)
    expect(page.locator(".beyond path")).to_have_count(1)
    expect(page.locator(".beyond text")).to_have_text("100K/s")
    expect(page.locator("svg")).to_have_attribute(
        "aria-label", "It since 07:00:00: 50/s to 100K/s, 50/s last; 1 above the scale, the largest at 07:30:00"
    )
    assert heights(page)[0] > 20
    box = page.locator("svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * (70 + 484 * 0.5) / 560, box["y"] + 60)
    expect(page.locator("output")).to_have_text("100K/s at 07:30:00, above the scale")


def test_neighbours_above_the_scale_have_an_arrow_each_and_the_largest_value(page: Page) -> None:
    draw(page, *(STEADY * 4)[:180], 20_000, 90_000, 30_000, *STEADY, bars=True)
    expect(page.locator(".beyond path")).to_have_count(3)
    expect(page.locator(".beyond text")).to_have_text(["90K/s"])


@pytest.mark.parametrize("bars", [True, False])
def test_an_outage_is_drawn_at_its_full_height(page: Page, bars: bool) -> None:
    draw(page, *[8_000] * 100, 130_000, *[8_000] * 100, say="duration", bars=bars, every_ms=8_000)
    expect(page.locator(".beyond path")).to_have_count(0)
    expect(page.locator("svg text").nth(2)).to_have_text("4 min")
    if bars:
        assert max(heights(page)) > 12 * min(heights(page))


@pytest.mark.parametrize(
    "values", [STEADY, [50, 100_000], [0] * 40 + [7] + [0] * 19, [1_000 * (1 + n % 9) for n in range(14 * 12)]]
)
def test_a_chart_without_outliers_has_no_arrow(page: Page, values: list[float]) -> None:
    draw(page, *values, bars=True)
    expect(page.locator("svg")).to_have_count(1)
    expect(page.locator(".beyond path")).to_have_count(0)


@pytest.mark.parametrize(("usual_ms", "lines"), [(20_000, 1), (5_000, 0), (500_000, 1)])
def test_a_chart_title_states_the_limit_and_a_line_shows_it_unless_all_values_are_far_below(
    page: Page, usual_ms: int, lines: int
) -> None:
    draw(page, *[usual_ms] * 30, say="duration", limit=300_000)
    expect(page.locator("line.limit")).to_have_count(lines)
    expect(page.locator("h3")).to_have_text("It, limit 5 min")


def test_axis_labels_of_a_delay_of_years_are_fully_visible(page: Page) -> None:
    draw(page, *[250_000_000_000] * 30, say="duration")
    expect(page.locator("output")).to_have_text("2893 d")
    lefts = "all => all.map(one => one.getBoundingClientRect().left - one.closest('svg').getBoundingClientRect().left)"
    assert min(page.locator("svg text").evaluate_all(lefts)) >= 0


def test_sizes_have_the_units_of_alerts_and_of_the_configuration(page: Page) -> None:
    draw(page, *[1_500] * 59, say="bytes", bars=True)
    expect(page.locator("svg text[text-anchor=end]")).to_have_text(["0", "1.0 KiB", "2.0 KiB", re.compile(":")])
    draw(page, *[500 * 2**20] * 59, say="bytes", bars=True)
    expect(page.locator("output")).to_have_text("500 MiB")


def test_a_chart_of_zeros_only_is_described_in_words(page: Page) -> None:
    draw(page, *[0] * 40, bars=True)
    expect(page.locator("figure")).to_contain_text("Always 0 since")


PART = """async ({name, view}) => {
    const table = await import("/table.js");
    document.body.replaceChildren(table[name](view));
}"""


def cells(*keys: str) -> list[dict[str, Any]]:
    return [{"key": key, "state": "open", "rows": None, "late_rows": 0, "files": 0} for key in keys]


@pytest.mark.parametrize(
    ("keys", "columns"),
    [(["2026-11-24T16"], ["16"]), (["2026-11-23T22", "2026-11-24T03"], [f"{hour:02}" for hour in range(3, 23)])],
)
def test_each_hour_of_few_windows_has_room_for_its_name(page: Page, keys: list[str], columns: list[str]) -> None:
    page.evaluate(PART, {"name": "windows", "view": {"calendar": {"grain": "hour", "cells": cells(*keys)}}})
    page.set_viewport_size({"width": 1000, "height": 300})
    names = page.locator("thead th")
    expect(names).to_have_text(columns)
    assert {width >= 22 for width in names.evaluate_all("all => all.map(one => one.clientWidth)")} == {True}


def test_the_legend_explains_windows_without_rows(page: Page) -> None:
    shown = cells("2026-11-24T15", "2026-11-24T16")
    legend = page.locator(".legend span")
    for rows, words in ((5, ["complete", "open"]), (0, ["complete", "open", "pale: no rows"])):
        shown[0] |= {"state": "complete", "rows": rows}
        page.evaluate(PART, {"name": "windows", "view": {"calendar": {"grain": "hour", "cells": shown}}})
        expect(legend).to_have_text(words)


def test_on_a_narrow_screen_a_day_of_hours_is_seen_whole_and_each_hour_has_its_name(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    keys = [f"2026-11-2{day}T{hour:02}" for day in (3, 4) for hour in range(24)]
    page.evaluate(PART, {"name": "windows", "view": {"calendar": {"grain": "hour", "cells": cells(*keys)}}})
    seen = "one => [one.getBoundingClientRect().right, getComputedStyle(one.parentNode, '::before').content]"
    shown = page.locator(".calendar .cell").evaluate_all(f"all => all.map({seen})")
    assert max(right for right, _ in shown) <= 390
    assert [name for _, name in shown] == [f'"{hour:02}"' for hour in range(24)] * 2


HELD = """async ({cells}) => {
    const { heldWindows } = await import("/table.js");
    window.state ??= {};
    document.body.replaceChildren(heldWindows({ table: "demo.flights", calendar: { cells } }, window.state));
}"""


@pytest.mark.parametrize("width", [390, 1200])
def test_of_many_held_windows_the_oldest_are_seen_and_a_key_opens_the_others(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    note = "expect_column_values_to_not_be_null(carrier): 12 of 900 values are null " * 3
    held = [one | {"state": "held", "note": note} for one in cells(*(f"2026-11-{day:02}" for day in range(1, 31)))]
    page.evaluate(HELD, {"cells": held})
    rows, more = page.locator(".runs li:visible"), page.get_by_text("and 27 more", exact=True)
    expect(rows).to_have_count(3)
    expect(rows.first.get_by_role("link")).to_have_text("2026-11-01")
    more.focus()
    page.keyboard.press("Enter")
    expect(rows).to_have_count(30)
    expect(rows.last.get_by_role("button")).to_have_text("Release 2026-11-30 …")
    page.wait_for_function("window.state.showsAllHeld")
    page.evaluate(HELD, {"cells": held})  # as each refresh does
    expect(rows).to_have_count(30)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    more.click()
    expect(rows).to_have_count(3)


def test_a_few_held_windows_are_all_seen(page: Page) -> None:
    page.evaluate(HELD, {"cells": [one | {"state": "held"} for one in cells("2026-11-01", "2026-11-02", "2026-11-03")]})
    expect(page.locator(".runs li:visible")).to_have_count(3)
    expect(page.locator("summary")).to_have_count(0)


def test_a_narrow_screen_shows_the_whole_snapshot_chart_with_readable_text(
    page: Page,
) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    kinds = ["batch", "backfill", "compaction"]
    marks = [
        {"at_ms": NOW + n * MINUTE_MS, "kind": kinds[n % 3], "label": kinds[n % 3], "stream": "trips", "message": "x"}
        for n in range(90)
    ]
    page.evaluate(PART, {"name": "snapshots", "view": {"at_ms": NOW, "shape": {"marks": marks, "snapshots": 90}}})
    shown = page.locator(".lanes text, .lanes rect").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().toJSON())"
    )
    assert len(shown) == 3 + 90 + 3
    assert all(one["left"] >= 0 and one["right"] <= 390 for one in shown)
    assert min(one["height"] for one in shown) >= 11


@pytest.mark.parametrize("width", [390, 1200])
def test_a_long_dag_id_stays_inside_its_number(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate(
        """async note => {
            const [{ number }, { h }] = await Promise.all([import("/parts.js"), import("/dom.js")]);
            const numbers = ["Lag", "Records", "Complete to", "Table"].map(name => number(name, "0", note));
            document.body.replaceChildren(h("dl", { class: "numbers" }, numbers));
        }""",
        "the DAG frazil_partitions_warehouse.flights_of_all_airports is behind",
    )
    wider = page.locator(".numbers > div").evaluate_all("all => all.map(one => one.scrollWidth - one.clientWidth)")
    assert wider == [0] * 4


TIME, GATE = {"kind": "time", "name": "the hour is not over"}, {"kind": "gate", "name": "2026-11-24T16"}


@pytest.mark.parametrize(
    ("holders", "unsignalled", "shown"),
    [
        ([], "the DAG frazil_partitions_demo.made has not run, so the first window is not set", "no signal yet"),
        ([TIME], "", "the hour is not over"),
        ([TIME, GATE, GATE], "", "2 held (2026-11-24 16:00 and 1 more)"),
        (
            [{"kind": "stream", "name": "a", "reason": "is idle"}, GATE],
            "",
            "1 held (2026-11-24 16:00); next window waits for stream a, which is idle",
        ),
    ],
)
def test_the_note_beside_the_last_complete_window_is_short_and_names_what_holds_it_back(
    page: Page, holders: list[dict[str, str]], unsignalled: str, shown: str
) -> None:
    windows = {"unsignalled": unsignalled, "holders": holders}
    assert page.evaluate('async windows => (await import("/parts.js")).heldBy(windows)', windows) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short `frazil status x`", "short `frazil status x`"),
        ("a" * 1000 + "b" * 360, "a" * 360 + " … " + "b" * 360),
        ("a" * 350 + " `" + "c" * 1000 + "` " + "b" * 350, "a" * 350 + "  …  " + "b" * 350),
    ],
)
def test_a_long_sentence_loses_its_middle_and_no_part_of_a_command(page: Page, text: str, shown: str) -> None:
    assert page.evaluate('async text => (await import("/parts.js")).brief(text)', text) == shown
