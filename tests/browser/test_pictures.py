"""The pictures of the page, drawn of given points without a server: a value is seen at its height, or is marked."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 640, "height": 300})
    page = context.new_page()
    page.route("http://page.test/*", lambda route: route.fulfill(path=STATIC / route.request.url.rsplit("/", 1)[1]))
    page.goto("http://page.test/index.html", wait_until="commit")
    page.set_content('<link rel="stylesheet" href="/page.css"><body></body>')
    yield page
    context.close()


def draw(page: Page, *values: float, say: str = "rate", every_ms: int = MINUTE_MS, **options: Any) -> None:
    first = NOW - len(values) * every_ms
    points = [{"at": first + n * every_ms, "value": value} for n, value in enumerate(values)]
    page.evaluate(DRAW, {"points": points, "options": {"title": "It", "now": NOW, **options}, "say": say})


def heights(page: Page) -> list[float]:
    return [float(bar.get_attribute("height") or "nan") for bar in page.locator("rect.bar").all()]


STEADY = [50.0] * 59


def test_a_burst_that_would_flatten_the_others_has_an_arrow_with_its_value_and_the_others_stay_readable(
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
def test_an_outage_stands_at_its_whole_height(page: Page, bars: bool) -> None:
    draw(page, *[8_000] * 100, 130_000, *[8_000] * 100, say="duration", bars=bars, every_ms=8_000)
    expect(page.locator(".beyond path")).to_have_count(0)
    expect(page.locator("svg text").nth(2)).to_have_text("4 min")
    if bars:
        assert max(heights(page)) > 12 * min(heights(page))


@pytest.mark.parametrize(
    "values", [STEADY, [50, 100_000], [0] * 40 + [7] + [0] * 19, [1_000 * (1 + n % 9) for n in range(14 * 12)]]
)
def test_what_has_no_exception_has_no_arrow(page: Page, values: list[float]) -> None:
    draw(page, *values, bars=True)
    expect(page.locator("svg")).to_have_count(1)
    expect(page.locator(".beyond path")).to_have_count(0)


def test_nothing_but_zero_is_said_in_words(page: Page) -> None:
    draw(page, *[0] * 40, bars=True)
    expect(page.locator("figure")).to_contain_text("Always 0 since")
