"""The operations page in Airflow's frame: by keyboard, in light and dark, on a narrow screen."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from frazil.doctor import CheckState, host
from tests.api_server import ApiServer
from tests.browser.conftest import PAGE, Open, settled, view
from tests.dags import in_airflow
from tests.polling import eventually
from tests.troubled_world import DECLARED, TroubledWorld

pytestmark = [pytest.mark.browser, pytest.mark.processes]
VIEWS = {
    "": "Streams",
    "#/stream/orders": "orders",
    "#/stream/payments": "payments",
    "#/stream/clicks": "clicks",
    "#/stream/signups": "signups",
    "#/stream/wishes": "wishes",
    "#/stream/customers": "customers",
    "#/stream/returns": "returns",
    "#/table/shop.orders": "shop.orders",
    "#/table/shop.shipments": "shop.shipments",
    "#/table/shop.pageviews": "shop.pageviews",
}
NARROW = ("Streams", "clicks", "shop.shipments")
"""A narrow screen has the colours of a wide one; what it has of its own is in these."""
AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
COLOURS = {"type": "rule", "values": ["color-contrast"]}
"""All that differs between light and dark."""
DRAWN = """async () => {
  const { timeline } = await import('/frazil/ops/timeline.js');
  const points = [0, 1, 2, 9, 10].map((minute) => ({ at: minute * 60000, span: 60000, value: minute }));
  const drawn = timeline(points, { title: '', now: 660000 }).querySelectorAll('.stroke');
  return [...drawn].map((one) => one.getAttribute('d'));
}"""
AXES = """async () => {
  const { timeline } = await import('/frazil/ops/timeline.js');
  const { bytes, duration, rate, short } = await import('/frazil/ops/format.js');
  const axis = (value, say, bars) => {
    const points = [0, 1, 2].map((minute) => ({ at: minute * 60000, value }));
    const drawn = timeline(points, { title: '', now: 120000, say, bars });
    const all = (what) => [...drawn.querySelectorAll(what)];
    const labels = all('text[text-anchor=end]').filter((one) => one.getAttribute('x') < 100);
    const at = (one) => Number(one.getAttribute('x'));
    return {
      labels: labels.map((one) => one.textContent),
      covered: all('.bar').some((one) => at(one) < Math.max(...labels.map(at))),
      says: drawn.querySelector('p')?.textContent || '',
    };
  };
  const values = [0, 0.0001, 0.002, 0.3, 1, 2, 3, 5, 7, 40, 999, 4321, 1e6, 90 * 3600 * 1000];
  const each = values.flatMap((value) => [[value, true], [value, false]]);
  return [bytes, duration, rate, short].flatMap((say) => each.map(([value, bars]) => axis(value, say, bars)));
}"""
"""Pictures of each kind and of values from nothing to much."""
FITS = "e => e.getBoundingClientRect().right <= e.closest('td').getBoundingClientRect().right + 0.5"
LONG_NOTES = """() => {
  const said = document.createElement("span");
  said.textContent = "w".repeat(700);
  for (const kind of ["note", "problem"]) {
    const note = document.createElement("p");
    note.className = kind;
    note.append(said.cloneNode(true));
    document.querySelector("main").prepend(note);
  }
  const long = "h1, .way, .aside, output.soft, .runs li > div, small.calm, .why li";
  document.querySelectorAll(long).forEach((one) => { one.textContent = said.textContent; });
}"""
"""Reasons of people, names and errors without a space."""
LONG_ERRORS = "document.querySelectorAll('.error').forEach(one => { one.textContent = 'it is full '.repeat(90); })"
MANY = 300
ROW = "th[scope=row]"
ROWS = f"tbody {ROW}"
NAMES_AND_STATES = """rows => rows.map(row => [
    row.querySelector('.name').innerText, row.querySelector('[data-name=State] .badge').innerText])"""
LEVELS = """rows => rows.map(row => [
    row.querySelector('.badge:not(.health *)').classList[1],
    row.nextElementSibling.querySelector('ul').classList[0]])"""


def violations(page: Page, *, of: object = AA) -> str:
    found = Axe().run(page, options={"runOnly": of, "resultTypes": ["violations"]})
    return found.generate_report() if found.violations_count else ""


def test_the_page_is_in_airflows_navigation_and_follows_its_dark_mode(open_page: Open):
    page = open_page("/plugin/frazil-streams", theme="dark")
    inside = page.frame_locator("iframe")
    expect(inside.get_by_role("heading", name="Streams")).to_be_visible()
    expect(inside.locator("html[data-theme=dark]")).to_have_count(1)
    expect(page.get_by_role("link", name="Streams").first).to_be_visible()
    inside.get_by_role("link", name="shop.shipments", exact=True).first.click()
    expect(inside.get_by_role("heading", name="Held windows")).to_be_visible()
    inside.locator("[data-key^=held-]").first.click()
    expect(inside.locator(".cell.chosen")).to_have_count(1)
    docs = inside.get_by_role("list").get_by_role("link", name="Data Docs")
    expect(docs.first).to_have_attribute("href", re.compile("^http.*/frazil/data-docs/shipments.html$"))
    assert "#/table/shop.shipments?window=" in page.url
    page.reload()
    expect(inside.locator(".cell.chosen")).to_have_count(1)
    expect(inside.get_by_role("button", name="Release 20").first).to_be_visible()


@pytest.mark.usefixtures("server")
def test_frazil_doctor_knows_the_api_server_that_serves_the_page(world: TroubledWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FRAZIL_HOME", world.environment["FRAZIL_HOME"])
    assert eventually(lambda: [one.state for one in host.check_api_servers()] == [CheckState.OK], within_s=30)


@pytest.mark.rotates(2)
@pytest.mark.parametrize(("theme", "width"), [("light", 1200), ("dark", 1200), ("light", 390)])
def test_each_view_meets_wcag_aa_in_light_and_dark_and_on_a_narrow_screen(open_page: Open, theme: str, width: int):
    page, found = open_page(PAGE, theme=theme, width=width), {}
    rules = AA if theme == "light" else COLOURS
    for at, heading in VIEWS.items():
        view(page, at, heading)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (heading, width)
        if heading == "Streams":
            for other in (1120, 1000, width):  # as wide as Airflow's frame leaves it
                page.set_viewport_size({"width": other, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), other
            page.locator(".flow > span").evaluate_all("all => all.forEach(one => { one.textContent = '204 an hour'; })")
            assert page.evaluate(f"[...document.querySelectorAll('.flow')].every({FITS})"), width
        page.evaluate(LONG_NOTES)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (heading, width)
        view(page, at, heading)
        page.evaluate(LONG_ERRORS)
        assert page.locator(".error").evaluate_all("all => all.every(e => e.scrollHeight <= e.clientHeight)"), heading
        if width > 400 or heading in NARROW:
            found[heading] = violations(page, of=rules)
    view(page, "#/stream/refunds", "refunds")
    page.get_by_role("button", name="Reset …").click()
    expect(page.get_by_role("dialog").get_by_role("listitem")).not_to_have_count(0)
    found["dialog"] = violations(page, of=rules)
    page.goto(page.url.replace("index.html", "runbook.html").partition("#")[0])
    expect(page.get_by_role("heading", name="stall", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), ("runbook", width)
    found["runbook"] = violations(page, of=rules)
    assert {name: said for name, said in found.items() if said} == {}


@pytest.mark.rotates(2)
@pytest.mark.parametrize("at", ["", "#/stream/clicks", "#/table/shop.shipments"])
def test_every_control_can_be_reached_by_keyboard_and_shows_its_focus(open_page: Open, server: ApiServer, at: str):
    page = open_page(f"{PAGE}{at}")
    settled(page, VIEWS[at])
    if not at:  # the line of `suppliers`, whose catalog hangs, must not move meanwhile
        answer = page.request.get(f"{server.url}/frazil/ops/api/overview").text()
        page.route("**/api/overview", lambda route: route.fulfill(body=answer, content_type="application/json"))
        page.reload()
        settled(page, VIEWS[at])
    name = "e => e.dataset.key || e.textContent"
    wanted = set(
        page.evaluate(
            f"[...document.querySelectorAll('a[href], button, input, [tabindex=\"0\"]')]"
            f".filter(e => e.tabIndex >= 0).map({name})"
        )
    )
    reached, unseen = set(), set()
    for _ in range(len(wanted) + 5):
        page.keyboard.press("Tab")
        here, outline = page.evaluate(f"(e => [({name})(e), getComputedStyle(e).outlineStyle])(document.activeElement)")
        reached.add(here)
        unseen |= {here} if outline == "none" and here in wanted else set()
    assert wanted - reached == set()
    assert unseen == set()


def test_streams_that_need_attention_are_listed_first_with_their_reasons(open_page: Open):
    page = open_page(PAGE)
    settled(page, "Streams")
    expect(page.locator(".headline")).to_contain_text("of 14 streams need attention")
    # Each list is read at once: `suppliers` moves after a minute, when the page gives up on its hanging catalog.
    words = dict(page.locator(f"tr:has({ROW})").evaluate_all(NAMES_AND_STATES))
    assert [name for name in words if name != "suppliers"][:3] == ["wishes", "payments", "clicks"]
    assert words["payments"] == "given up"
    assert words["inventory"] == "catalog unavailable"
    assert (words["clicks"], words["sensors"], words["refunds"]) == ("slow", "stalled", "paused")
    assert [words[name] for name in ("orders", "customers", "returns")] == ["running", "running", "commits elsewhere"]
    for said in ("its key has expired", "37,970 records wait", "A quality gate holds the window", "are dead letters"):
        expect(page.get_by_text(said).first).to_be_visible()
    to_dag = page.get_by_role("listitem").filter(has_text="frazil_writer_inventory is paused").get_by_role("link")
    expect(to_dag).to_have_attribute("href", "/dags/frazil_writer_inventory")
    for worst in (".headline.broken", ".chip .shape.broken"):  # all that need attention, as the worst of them
        expect(page.locator(worst)).to_have_count(1)
    levels = page.locator("tr:has(+ .why)").evaluate_all(LEVELS)
    assert levels
    assert all(of_state == of_reasons for of_state, of_reasons in levels)
    view(page, "#/stream/payments", "payments")
    expect(page.locator("header .badge.broken, .needs.broken")).to_have_count(2)


def test_a_hanging_catalog_is_reported_within_two_seconds_and_delays_no_other(browser: Browser, server: ApiServer):
    context = browser.new_context()
    context.add_cookies([server.cookie("VIEWER")])

    def words() -> dict[str, str]:
        requested = time.monotonic()
        lines = context.request.get(f"{server.url}/frazil/ops/api/overview").json()["lines"]
        assert time.monotonic() - requested < 4, "1.6 s, on a machine that does nothing else"
        return {line["stream"]: line["word"] for line in lines}

    assert words()["orders"] == "running"
    eventually(lambda: words()["suppliers"] in {"no answer", "table unreadable"})
    page = context.new_page()
    page.goto(f"{server.url}{PAGE}#/stream/suppliers")
    settled(page, "suppliers")
    said = re.compile(
        "The catalog far, its storage, or Kafka has not responded since|no answer in time|does not answer"
    )
    expect(page.get_by_text(said).first).to_be_visible()
    context.close()


@pytest.mark.parametrize("at", ["#/stream/orders", "#/table/shop.orders"])
def test_a_view_with_times_names_their_time_zone(open_page: Open, at: str):
    page = open_page(f"{PAGE}{at}")
    expect(page.locator(".aside")).to_contain_text("times are UTC")


def test_a_stream_view_shows_history_partitions_and_dags_and_links_to_its_table_and_back(open_page: Open):
    page = open_page(f"{PAGE}#/stream/clicks")
    settled(page, "clicks")
    for picture in ("Records per second: written, and arrived", "Lag in records since"):
        expect(page.get_by_role("img", name=picture)).to_be_visible()
    axes = page.locator(".charts .chart svg").evaluate_all(
        "all => all.map(one => [...one.querySelectorAll(':scope > text')].slice(-3).map(text => text.textContent))"
    )
    assert len(axes) > 2
    assert len({*map(tuple, axes)}) == 1, "all share one time axis"
    titles = page.locator(".chart h3").all_inner_texts()
    assert len({*titles}) == len(titles)
    before, after = page.evaluate(DRAWN)  # a pause of minutes is a gap, and each minute a step
    assert not {"L", "l"} & {*before, *after}
    for axis in page.evaluate(AXES):
        assert len({*axis["labels"]}) == len(axis["labels"]), "no label is repeated"
        assert "1 bytes" not in axis["labels"]
        assert not axis["covered"], "the first bar is beside the labels"
        assert bool(axis["labels"]) != axis["says"].startswith("Always 0")
    with page.expect_response(lambda answer: "hours=24" in answer.url):
        page.get_by_role("button", name="24 hours").click()
    assert page.url.endswith("#/stream/clicks?hours=24")
    settled(page, "clicks")
    chart = eventually(page.locator(".charts .chart svg").first.bounding_box)  # none while it is drawn again
    assert chart is not None
    page.mouse.move(chart["x"] + chart["width"] * 0.3, chart["y"] + 20)
    page.mouse.down()
    page.mouse.move(chart["x"] + chart["width"] * 0.8, chart["y"] + 20)
    page.mouse.up()
    span = page.locator(".recorded .chips .soft")
    expect(span).to_contain_text(" to ")
    shown = span.inner_text()
    page.reload()
    settled(page, "clicks")
    expect(span).to_have_text(shown)
    page.get_by_role("button", name="6 hours").click()
    expect(span).to_have_count(0)
    heat = page.locator(".heat li")
    expect(heat).to_have_count(8)
    expect(page.locator(".heat .holds")).to_have_text(re.compile("^5"))
    assert page.locator(".heat-5").count() == 1
    expect(page.get_by_role("link", name="Writer", exact=True)).to_have_attribute("href", "/dags/frazil_writer_clicks")
    page.get_by_role("link", name="shop.clicks", exact=True).click()
    settled(page, "shop.clicks")
    page.go_back()
    settled(page, "clicks")


def test_a_table_view_shows_the_state_of_each_window_and_the_savings_of_maintenance(open_page: Open):
    page = open_page(f"{PAGE}#/table/shop.orders")
    settled(page, "shop.orders")
    expect(page.locator(".calendar .cell.reopened")).to_have_count(1)
    assert page.locator(".calendar .cell.complete").count() > 40
    expect(page.get_by_role("listitem").filter(has_text=re.compile(r"\d+ files became \d+"))).to_be_visible()
    for said in ("412 snapshots expired", "118 manifests became 2", "6 orphan files deleted"):
        expect(page.get_by_role("listitem").filter(has_text=said)).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Snapshots since (?=.* of compaction).* of expiry"))).to_be_visible()
    view(page, "#/table/shop.shipments", "shop.shipments")
    for state in ("held", "released", "reopened"):
        expect(page.locator(f".calendar .cell.{state}")).to_have_count(1)
    view(page, "#/table/shop.returns", "shop.returns")
    expect(page.locator(".calendar .cell.backfilled").first).to_have_attribute("aria-label", re.compile("backfilled"))
    view(page, "#/table/shop.pageviews", "shop.pageviews")
    expect(page.locator(".calendar .cell.written.compacted").first).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="compaction failed")).to_have_count(2)
    view(page, "#/table/shop.customers", "shop.customers")
    expect(page.get_by_role("img", name=re.compile("of merge, customers"))).to_be_visible()


def test_a_chosen_window_lists_the_dag_runs_that_it_started(open_page: Open, server: ApiServer):
    page = open_page(f"{PAGE}#/table/shop.orders")
    settled(page, "shop.orders")
    cell = page.locator(".calendar .cell.complete").last
    window = str(cell.get_attribute("aria-label")).split(":")[0].replace(" ", "T")
    runs = [(window, "frazil_daily_sales", "success"), (window, "of_a_team", "failed")]
    server.process.call(in_airflow.put_window_runs, "shop.orders", runs)
    cell.click()
    shown = page.locator(".started li")
    expect(shown).to_have_text(["frazil_daily_sales success", "of_a_team failed"])
    link = page.get_by_role("link", name="of_a_team")
    expect(link).to_have_attribute("href", "/dags/of_a_team/runs/asset__1")
    page.reload()
    expect(shown).to_have_count(2)
    view(page, "#/stream/orders", "orders")
    expect(page.locator(".days tbody tr").first).to_contain_text("so far")


def test_the_calendar_is_used_by_keyboard(open_page: Open):
    page = open_page(f"{PAGE}#/table/shop.orders")
    settled(page, "shop.orders")
    page.locator(".calendar .cell").last.focus()
    page.keyboard.press("ArrowLeft")
    cell = page.locator(".calendar .cell:focus")
    days = [str(page.locator(".calendar .cell").nth(-2).get_attribute("aria-label"))]
    assert [cell.get_attribute("aria-label")] == days
    page.keyboard.press("ArrowUp")
    above = str(cell.get_attribute("aria-label"))
    assert above < days[0]
    expect(page.locator("output")).to_have_text(above)
    page.keyboard.press("Enter")
    expect(page.locator(".calendar .cell.chosen:focus")).to_have_attribute("aria-label", above)
    hour = above.partition(":")[0].replace(" ", "T")
    assert page.url.endswith(f"?window={hour}")
    page.keyboard.press("Home")
    expect(page.locator(".calendar .cell").first).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".calendar .cell").first).to_be_focused()


def test_an_anonymous_user_is_sent_to_the_login_page_and_gets_nothing_else(browser: Browser, server: ApiServer):
    context = browser.new_context()
    page, got = context.new_page(), []
    page.on("response", lambda answer: got.append(answer.status) if "/frazil/ops/" in answer.url else None)
    page.goto(f"{server.url}/plugin/frazil-streams")
    page.wait_for_url(re.compile("/login"))
    expect(page.get_by_label(re.compile("user ?name", re.IGNORECASE))).to_be_visible()
    assert page.goto(f"{server.url}{PAGE}").status == 401  # type: ignore[union-attr]
    assert "orders" not in page.content()
    assert set(got) <= {401}
    context.close()


def test_a_viewer_sees_no_action_buttons_and_forged_requests_are_refused(open_page: Open):
    page = open_page(f"{PAGE}#/stream/orders", role="VIEWER")
    for at in ("#/stream/orders", "#/stream/payments", "#/table/shop.shipments"):
        view(page, at, VIEWS[at])
        expect(page.get_by_text("Airflow does not permit you to act here")).to_be_visible()
        expect(page.get_by_role("group", name="Actions")).to_have_count(0)
    url = page.url.split("index.html")[0]
    headers = {"X-Frazil": "page", "Content-Type": "application/json"}
    for action in ("pause/orders", "reset/refunds", "maintain/shop.orders", "release/shop.shipments"):
        assert page.request.post(f"{url}api/action/{action}", headers=headers, data={}).status == 403


def test_a_link_with_an_action_opens_its_dialog_once_and_only_where_it_is_offered(open_page: Open):
    page = open_page(f"{PAGE}#/table/shop.orders?action=maintain", role="OP")
    expect(page.get_by_role("dialog", name="Maintain shop.orders")).to_be_visible()
    expect(page).to_have_url(re.compile(r"#/table/shop\.orders$"))
    view(page, "#/stream/orders", "orders")
    expect(page.get_by_role("dialog")).to_have_count(0)
    view(page, "#/table/shop.orders", "shop.orders")
    page.reload()
    settled(page, "shop.orders")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page = open_page(f"{PAGE}#/table/shop.orders?action=release", role="OP")  # nothing is held
    expect(page).to_have_url(re.compile(r"#/table/shop\.orders$"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    page = open_page(f"{PAGE}#/table/shop.orders?action=maintain", role="VIEWER")
    expect(page).to_have_url(re.compile(r"#/table/shop\.orders$"))
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_page_guides_a_user_without_streams_and_filters_and_searches_many(
    open_page: Open, server: ApiServer, world: TroubledWorld, tmp_path: Path
):
    page = open_page(PAGE)
    settled(page, "Streams")
    try:
        server.process.call(in_airflow.declare_elsewhere, str(tmp_path))
        page.reload()
        expect(page.get_by_role("heading", name="No stream yet")).to_be_visible()
        assert violations(page) == ""
        for n in range(MANY):
            name = f"shop{n:03}"
            text = DECLARED.format(name=name, kafka=world.kafka.bootstrap, table=f"shop.{name}", extra="")
            (tmp_path / f"{name}.yaml").write_text(text if n else "name: shop000\n")
        server.process.call(in_airflow.declare_elsewhere, str(tmp_path))
        page.reload()
        expect(page.locator(ROWS)).to_have_count(MANY)
        rows = "[...document.querySelectorAll('.lines tr')].map(row => getComputedStyle(row).display)"
        assert set(page.evaluate(rows)) == {"table-row"}
        page.get_by_role("button", name=re.compile("^Need attention")).click()
        expect(page.locator(ROWS)).to_have_count(1)
        page.get_by_role("button", name=re.compile("^All")).click()
        page.get_by_role("searchbox").fill("shop.shop27")
        expect(page.locator(ROWS)).to_have_count(10)
        page.get_by_role("searchbox").fill("no such stream")
        page.get_by_role("button", name="Show all").click()
        expect(page.locator(ROWS)).to_have_count(MANY)
    finally:
        server.process.call(in_airflow.declare_elsewhere, str(world.streams))
