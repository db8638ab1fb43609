"""Each action as a user takes it on the page, and what came of it: in the table, in Airflow, and in Airflow's audit
log.

The first clicks of the five common troubles are those that docs/how-to/operate-from-the-page.md tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from frazil.partitions.windows import Grain, Window, windows_between
from frazil.signals.signal_table import SignalState, TableSignals
from frazil.table.catalogs import load_catalog
from tests.api_server import ApiServer
from tests.browser.conftest import PAGE, Open, desired, settled, view
from tests.dags import in_airflow
from tests.troubled_world import TroubledWorld

pytestmark = [pytest.mark.browser, pytest.mark.processes]
GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "operate-from-the-page.md"


def steps(shown: str) -> str:
    """Return the guide's row for a problem that the page shows as `shown`, with the rows that continue it."""
    (found,) = re.findall(rf"^\| [^|]*\*{shown}\*.*\n(?:\| \|.*\n)*", GUIDE.read_text(), flags=re.MULTILINE)
    return str(found)


def reported(guide: str, *words: str) -> None:
    """The guide has each pressed or read text under the same name."""
    missing = [word for word in words if f"*{word}*" not in guide]
    assert missing == []


def begin(page: Page, name: str) -> None:
    """Go from the overview to a stream or a table, by its name."""
    settled(page, "Streams")
    page.get_by_role("link", name=name, exact=True).click()
    settled(page, name)


def requested(page: Page, button: str) -> Locator:
    """Return an action's dialog once it shows the effects."""
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("listitem").first).to_be_visible()
    return dialog


def take(page: Page, button: str, form: Mapping[str, Any]) -> str:
    """Fill in an action's dialog, confirm it, and close it. Return the page's message."""
    dialog = requested(page, button)
    for label, value in form.items():
        field = dialog.get_by_label(label)
        if isinstance(value, bool):
            field.set_checked(value)
        else:
            field.fill(value)
    return confirmed(page, dialog)


def confirmed(page: Page, dialog: Locator) -> str:
    subject = page.get_by_role("heading", level=1).inner_text()
    retype = dialog.get_by_label(f"Type {subject} to confirm")
    go = dialog.locator("button.go")
    expect(dialog.locator("form")).to_have_attribute("aria-busy", "false")
    if retype.count():
        expect(go).to_be_disabled()
        retype.fill(subject)
    go.click()
    said = dialog.get_by_role("status").inner_text()
    if run := re.match(r"The run (\S+) of (\S+) was created", said):
        way = f"/dags/{run[2]}/runs/{quote(run[1], safe='')}"
        expect(dialog.get_by_role("link", name="The run in Airflow")).to_have_attribute("href", way)
    if run:
        expect(dialog.get_by_text("The run is queued.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    return said


def one_form_of_time(page: Page) -> bool:
    """That of the page: `2013-12-30 15:00`."""
    return re.search(r"\d{4}-\d\d-\d\d(T\d| \d\d:\d\d:\d\dZ)", page.locator("main").inner_text()) is None


def recorded(server: ApiServer, name: str) -> tuple[str | None, str | None, dict[str, Any]]:
    """The newest entry of an action in Airflow's audit log: who, for which DAG, and what."""
    who, dag_id, what = server.process.call(in_airflow.audit_log, f"frazil_{name}")[-1]
    return who, dag_id, json.loads(what)


def test_a_stream_that_stopped_is_resumed(open_page: Open, server: ApiServer, world: TroubledWorld):
    guide = steps("given up")
    reported(guide, "given up", "Writers", "Events", "Resume")
    page = open_page(PAGE, role="OP")
    begin(page, "payments")
    expect(page.locator("header .badge")).to_have_text("given up")
    ended = page.get_by_role("listitem").filter(has_text=re.compile(r"failed with AccessDenied \(16\)"))
    expect(ended.first).to_contain_text(re.compile(r"\d\d:\d\d – .*\d\d:\d\d(:\d\d)? failed with"))
    expect(page.get_by_text(re.compile("the supervisor gives up; an operator must fix the cause"))).to_be_visible()
    assert take(page, "Resume", {"Reason": "the key is renewed"}) == "payments is resumed."
    wanted = desired(world, "payments")
    assert (wanted["mode"], wanted["reason"], wanted["by"]) == ("running", "the key is renewed", "op, Airflow")
    who, dag_id, what = recorded(server, "resume")
    assert (who, dag_id, what["reason"]) == ("op", "frazil_writer_payments", "the key is renewed")


def test_the_page_shows_the_cause_of_a_late_window(open_page: Open):
    guide = steps("stalled")
    reported(guide, "Complete to", "Next:")
    page = open_page(PAGE, role="OP")
    begin(page, "shop.sensors")
    expect(
        page.get_by_text(re.compile(r"^Next: .*the newest event of stream [\w-]+ in partition shop\.sensors-3 is from"))
    ).to_be_visible()
    assert one_form_of_time(page)
    page.get_by_role("link", name="sensors", exact=True).click()
    settled(page, "sensors")
    expect(page.get_by_text("The watermark waits for shop.sensors-3")).to_be_visible()
    assert one_form_of_time(page)


def test_the_dead_letters_action_in_the_runbook_replays_the_rejected_records(open_page: Open, server: ApiServer):
    guide = steps("Dead letters")
    reported(guide, "Rejected in the last day", "Replay dead letters …")
    page = open_page(PAGE, role="OP")
    begin(page, "signups")
    dead_letters = page.get_by_role("listitem").filter(has_text=re.compile(r"NotJson \d+ records"))
    expect(dead_letters).to_contain_text(re.compile(r"such as shop\.signups\[0\]@\d+"))
    said = take(page, "Replay dead letters …", {})
    assert re.match(r"The run \S+ of frazil_dead_letters was created\.", said)
    runs = server.process.call(in_airflow.runs_of, "frazil_dead_letters")
    assert runs[-1].items() >= {"stream": "signups", "action": "replay", "dry-run": True}.items()
    server.process.call(in_airflow.pause, "frazil_dead_letters", True)
    server.process.call(in_airflow.forget_answers)  # it asks Airflow about a DAG once a second
    dialog = requested(page, "Replay dead letters …")
    dialog.get_by_label("Dry run").uncheck()
    dialog.get_by_label("Unpause the DAG frazil_dead_letters").check()
    expect(dialog.get_by_text("This starts a run of the DAG frazil_dead_letters, and unpauses it.")).to_be_visible()
    dialog.get_by_label("Type signups to confirm").fill("signups")
    dialog.get_by_role("button", name="Replay").click()
    expect(dialog.get_by_text("The run is queued.")).to_be_visible()
    run = re.match(r"The run (\S+) ", dialog.get_by_role("status").inner_text())
    assert run is not None
    server.process.call(
        in_airflow.end_task, "frazil_dead_letters", run[1], "settle", "success", "landed: 46, failed: 0"
    )
    expect(dialog.get_by_text("landed: 46, failed: 0.")).to_be_visible()
    log = dialog.get_by_role("link", name="Its log in Airflow")
    expect(log).to_have_attribute("href", f"/dags/frazil_dead_letters/runs/{run[1]}/tasks/settle")
    page.keyboard.press("Escape")
    assert server.process.call(in_airflow.runs_of, "frazil_dead_letters")[-1]["dry-run"] is False
    assert recorded(server, "replay")[:2] == ("op", "frazil_dead_letters")


def test_a_stream_that_lags_is_restarted_with_more_cores(open_page: Open, server: ApiServer, world: TroubledWorld):
    guide = steps("slow")
    reported(guide, "slow", "Topic-partitions", "Batch time by phase", "Restart")
    page = open_page(PAGE, role="OP")
    begin(page, "clicks")
    expect(page.get_by_text("Darker means a larger lag, up to 31,000 records.")).to_be_visible()
    expect(page.get_by_role("heading", name="Batch time by phase")).to_be_visible()
    assert take(page, "Restart", {"Reason": "two cores more"}) == "clicks is restarting with a new writer."
    wanted = desired(world, "clicks")
    assert wanted["restart_generation"] == wanted["generation"] >= 1
    assert recorded(server, "restart")[:2] == ("op", "frazil_writer_clicks")


def test_a_table_due_for_maintenance_can_be_maintained_from_its_page(open_page: Open, server: ApiServer):
    guide = steps("maintenance due")
    reported(guide, "Files by size", "Maintenance", "Maintain now …")
    page = open_page(PAGE, role="OP")
    begin(page, "shop.pageviews")
    expect(page.get_by_text("compaction is due")).to_be_visible()
    take(page, "Maintain now …", {"Dry run": False})
    (run,) = server.process.call(in_airflow.runs_of, "frazil_maintenance")
    assert (run["tables"], run["dry-run"]) == (["shop.pageviews"], False)
    assert recorded(server, "maintain")[:2] == ("op", "frazil_maintenance")


def test_a_stream_is_paused_and_resumed_by_keyboard_after_the_page_explains_the_effect(
    open_page: Open, server: ApiServer, world: TroubledWorld
):
    page = open_page(f"{PAGE}#/stream/orders", role="OP")
    settled(page, "orders")
    for name, then, mode in (("Pause", "Resume", "paused"), ("Resume", "Pause", "running")):
        page.get_by_role("button", name=name, exact=True).focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name=f"{name} orders")
        expect(dialog.get_by_role("listitem").first).to_be_visible()
        dialog.get_by_label("Reason").fill("a test")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("status")).to_contain_text("orders is")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(page.get_by_role("button", name=then, exact=True)).to_be_visible()
        assert desired(world, "orders")["mode"] == mode
        assert recorded(server, name.lower())[0] == "op"


def test_a_reset_shows_the_skipped_and_repeated_offsets_and_moves_the_stream(open_page: Open, server: ApiServer):
    page = open_page(f"{PAGE}#/stream/refunds", role="OP")
    settled(page, "refunds")
    dialog = requested(page, "Reset …")
    dialog.get_by_label("Continue").select_option("earliest")
    again = re.compile(r"It reads [\d,]+ offsets again, although the table has them")
    expect(dialog.get_by_text(again)).to_be_visible()
    dialog.get_by_label("Continue").select_option("timestamp")
    wanting = dialog.get_by_text("Timestamp: enter a time")
    expect(wanting).to_be_visible()
    dialog.get_by_role("textbox", name="Timestamp").fill("2099-01-01 00:00Z")
    expect(wanting).to_have_count(0)
    dialog.get_by_label("Continue").select_option("latest")
    expect(dialog.get_by_text("It skips 600 offsets: their records never reach the table.")).to_be_visible()
    assert confirmed(page, dialog) == "refunds has its new position. Resume it to continue from there."
    expect(page.get_by_text("No lag.")).to_be_visible()
    assert recorded(server, "reset")[2]["to"] == "latest"
    view(page, "#/table/shop.refunds", "shop.refunds")
    expect(page.get_by_role("img", name=re.compile("1 of offsets reset, refunds"))).to_be_visible()
    view(page, "#/stream/orders", "orders")
    dialog = requested(page, "Reset …")
    expect(dialog.get_by_text("A writer of orders runs. Pause the stream first")).to_be_visible()
    expect(dialog.locator("button.go")).to_be_disabled()


def test_the_backfill_dialog_can_be_closed_or_starts_a_run_of_the_backfill_dag(open_page: Open, server: ApiServer):
    page = open_page(f"{PAGE}#/stream/orders", role="OP")
    settled(page, "orders")
    requested(page, "Backfill …")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Backfill …")).to_be_focused()
    dialog = requested(page, "Backfill …")
    expect(dialog.get_by_text("Enter a start or an end")).to_be_visible()
    expect(dialog.locator(".problem")).to_have_count(0)
    dialog.get_by_label("From").fill("2026-01-02T00:00:00Z")
    dialog.get_by_label("To (exclusive)").fill("2026-01-01T00:00:00Z")
    expect(dialog.get_by_text(re.compile(r"To \(exclusive\) .* is not after From"))).to_be_visible()
    expect(dialog.locator(".problem")).to_have_count(1)
    expect(dialog.locator("button.go")).to_be_disabled()
    page.keyboard.press("Escape")
    times = {"From": "2026-01-01T00:00:00Z", "To (exclusive)": "2026-01-02T00:00:00+01:00"}
    assert "frazil_backfill was created" in take(page, "Backfill …", times)
    (run,) = server.process.call(in_airflow.runs_of, "frazil_backfill")
    assert run.items() >= {"stream": "orders", "from-time": "2026-01-01T00:00:00+00:00", "dry-run": True}.items()
    assert recorded(server, "backfill")[:2] == ("op", "frazil_backfill")


def test_a_running_backfill_is_abandoned_after_the_page_shows_what_is_staged(open_page: Open, server: ApiServer):
    page = open_page(f"{PAGE}#/stream/returns", role="OP")
    settled(page, "returns")
    button = page.get_by_role("button", name="Abandon the backfill …", exact=True)
    dialog = requested(page, "Abandon the backfill …")
    expect(dialog.locator("button.go")).to_have_text("Abandon")
    expect(dialog.get_by_text(re.compile(r"has staged 400 rows in \d files?, 1 of about 3 chunks"))).to_be_visible()
    assert confirmed(page, dialog).startswith("The backfill of returns is abandoned, and its staged rows are removed.")
    expect(button).to_have_count(0)
    assert recorded(server, "abandon")[:2] == ("op", "frazil_backfill")


def test_a_window_that_a_gate_holds_is_released_with_a_reason(open_page: Open, server: ApiServer):
    page = open_page(f"{PAGE}#/table/shop.shipments", role="OP")
    settled(page, "shop.shipments")
    dialog = requested(page, "Release a window …")
    window, why = dialog.get_by_label("Window", exact=True), dialog.get_by_label("Reason")
    held = page.locator(".calendar .cell.held").get_attribute("aria-label") or ""
    assert held.startswith(f"{window.input_value()}: ")
    why.fill("the carrier is known to be wrong")
    for typed, said in (("2099-01-01 00:00", "it is not complete yet"), ("2000-01-01 00:00", "it is never signalled")):
        window.fill(typed)
        expect(dialog.get_by_text(f"Window: no gate holds {typed}: {said}")).to_be_visible()
        expect(dialog.locator("button.go")).to_be_disabled()
    page.keyboard.press("Escape")
    take(page, "Release a window …", {"Reason": "the carrier is known to be wrong"})
    (run,) = server.process.call(in_airflow.runs_of, "frazil_release")
    assert (run["table"], run["reason"]) == ("shop.shipments", "the carrier is known to be wrong")
    shown = recorded(server, "release")[2]["partition"]
    assert held.startswith(f"{shown}: ")
    assert run["partition"] == shown.replace(" ", "T").removesuffix(":00")


def test_the_signals_of_a_day_are_sent_again(
    open_page: Open, server: ApiServer, world: TroubledWorld, monkeypatch: pytest.MonkeyPatch
):
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    yesterday = (datetime.fromtimestamp(world.now_ms / 1000, UTC) - timedelta(days=1)).strftime("%Y-%m-%d")
    page = open_page(f"{PAGE}#/table/shop.orders", role="OP")
    settled(page, "shop.orders")
    said = take(page, "Send signals again …", {"Day": yesterday})
    assert said == "24 windows of shop.orders are signalled again. Their events are sent within a minute."
    day = Window.parse(yesterday)
    newest = TableSignals.load(load_catalog(None), "shop.orders").newest(from_us=day.start_us, to_us=day.end_us)
    hours = windows_between(Grain.HOUR, day.start_us, day.end_us)
    assert {newest[hour].state for hour in hours} == {SignalState.AGAIN}
    assert recorded(server, "send-again")[:2] == ("op", "frazil_partitions_shop.orders")
