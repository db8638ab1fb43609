"""The operations page as a person meets it: in Airflow's frame, by keyboard, in light and dark, on a narrow screen."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open

pytestmark = [pytest.mark.browser, pytest.mark.processes]
PAGE = "/frazil/ops/index.html"
VIEWS = {"": "Streams", "#/stream/ticks": "ticks", "#/stream/young": "young", "#/table/demo.ticks": "demo.ticks"}


def settled(page: Page, heading: str) -> None:
    expect(page.get_by_role("heading", level=1, name=heading, exact=True)).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)
    expect(page.get_by_text("looking", exact=True)).to_have_count(0)
    expect(page.get_by_text("Looking at the table …")).to_have_count(0)


def test_the_page_stands_in_airflows_navigation_and_is_dark_when_airflow_is(open_page: Open):
    page = open_page("/plugin/frazil-streams", theme="dark")
    inside = page.frame_locator("iframe")
    expect(inside.get_by_role("heading", name="Streams")).to_be_visible()
    expect(inside.locator("html[data-theme=dark]")).to_have_count(1)
    expect(page.get_by_role("link", name="Streams").first).to_be_visible()


def test_each_view_meets_wcag_aa_in_light_and_dark_and_on_a_narrow_screen(open_page: Open):
    axe, found = Axe(), {}
    for theme, width in (("light", 1200), ("dark", 1200), ("light", 390)):
        page = open_page(PAGE, theme=theme, width=width)
        for at, heading in VIEWS.items():
            page.evaluate("at => { location.hash = at; }", at)
            settled(page, heading)
            answer = axe.run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
            if answer.violations_count:
                found[theme, width, heading] = answer.generate_report()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (heading, width)
    assert found == {}


def test_those_that_need_a_person_come_first_and_a_search_finds_the_others(open_page: Open):
    page = open_page(PAGE)
    settled(page, "Streams")
    expect(page.locator(".headline")).to_contain_text("of 3 streams")
    expect(page.locator("tbody th[scope=row] .name").first).to_have_text("wrong")
    rows = "[...document.querySelectorAll('.lines tr')].map(row => getComputedStyle(row).display)"
    assert set(page.evaluate(rows)) == {"table-row"}
    page.get_by_role("searchbox").fill("demo.tick")
    expect(page.locator("tbody th[scope=row] .name")).to_have_text(["ticks"])
    page.get_by_role("searchbox").fill("no such stream")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("tbody th[scope=row]")).to_have_count(3)


def test_a_stream_shows_its_commits_and_leads_to_its_table_and_back(open_page: Open):
    page = open_page(PAGE)
    page.get_by_role("link", name="ticks", exact=True).click()
    settled(page, "ticks")
    expect(page.get_by_role("img", name="Records a second, by commit since")).to_be_visible()
    page.get_by_role("link", name="demo.ticks", exact=True).click()
    settled(page, "demo.ticks")
    expect(page.get_by_role("heading", name="Files by size")).to_be_visible()
    expect(page.get_by_role("img", name="Snapshots since")).to_be_visible()
    page.go_back()
    settled(page, "ticks")


def test_a_stream_is_paused_and_resumed_by_keyboard_after_the_page_said_what_happens(open_page: Open):
    page = open_page(f"{PAGE}#/stream/ticks", role="OP")
    settled(page, "ticks")
    for act, then in (("Pause", "Resume"), ("Resume", "Pause")):
        page.get_by_role("button", name=act, exact=True).focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name=f"{act} ticks")
        expect(dialog.get_by_role("listitem").first).to_be_visible()
        dialog.get_by_label("Why").fill("a test")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("status")).to_contain_text("ticks is")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(page.get_by_role("button", name=then, exact=True)).to_be_visible()


def test_what_changes_a_table_is_confirmed_by_its_name_and_can_be_left(open_page: Open):
    page = open_page(f"{PAGE}#/stream/ticks", role="OP")
    settled(page, "ticks")
    page.get_by_role("button", name="Backfill …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("Airflow has no DAG frazil_backfill")).to_be_visible()
    expect(dialog.get_by_role("button", name="Backfill", exact=True)).to_be_disabled()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Backfill …")).to_be_focused()


def test_a_viewer_looks_and_has_no_button_that_acts(open_page: Open):
    for at, heading in list(VIEWS.items())[1:]:
        page = open_page(f"{PAGE}{at}", role="VIEWER")
        settled(page, heading)
        expect(page.get_by_text("Airflow does not let you act here")).to_be_visible()
        expect(page.get_by_role("group", name="Actions")).to_have_count(0)


def test_an_address_asks_for_an_act_once_and_only_where_it_is_offered(open_page: Open):
    page = open_page(f"{PAGE}#/table/demo.ticks?act=maintain", role="OP")
    expect(page.get_by_role("dialog", name="Maintain demo.ticks")).to_be_visible()
    expect(page).to_have_url(re.compile(r"#/table/demo\.ticks$"))
    page.keyboard.press("Escape")
    page.reload()
    settled(page, "demo.ticks")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page = open_page(f"{PAGE}#/table/demo.ticks?act=release", role="OP")  # nothing is held
    expect(page).to_have_url(re.compile(r"#/table/demo\.ticks$"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    page = open_page(f"{PAGE}#/table/demo.ticks?act=maintain", role="VIEWER")
    expect(page).to_have_url(re.compile(r"#/table/demo\.ticks$"))
    expect(page.get_by_role("dialog")).to_have_count(0)
