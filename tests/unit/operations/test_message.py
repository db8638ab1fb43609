"""Notifications: enough to act on, for any number of alerts, and never too long to read."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from frazil.maintenance.alerts import Alert
from frazil.operations.message import (
    MAX_KEY_CHARACTERS,
    MAX_LISTED,
    MAX_SENTENCE_CHARACTERS,
    MAX_SEPARATE,
    MAX_TITLE_CHARACTERS,
    SEVERAL_KEY,
    Message,
    build_failed_task_message,
    build_late_run_message,
    build_message,
)

PAGE = "https://airflow.example/frazil/ops/index.html"
SERVED = PAGE.replace("index.html", "runbook.html")
SENTENCE = "stream rides of city.rides does not commit what waits in Kafka. `frazil status rides` says why"


def alert(rule: str = "freshness:rides", table: str = "city.rides", sentence: str = SENTENCE) -> dict[str, Any]:
    return Alert(rule, table, "old", 2_000_000_000_000, sentence).to_json()


def reported(*alerts: dict[str, Any], is_over: bool = False, standing: int = 1, overview: str = PAGE) -> Message:
    active = [alert("snapshots", f"another.table{n}") for n in range(standing)]
    message = build_message(alerts, is_over=is_over, active=active, overview=overview)
    assert message is not None
    return message


def test_no_alerts_give_no_message() -> None:
    assert build_message([], is_over=False, active=[alert()], overview=PAGE) is None


def test_an_alert_message_contains_all_that_an_operator_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAZIL_RUNBOOK", "https://wiki.example/frazil")
    fired = reported(alert())
    assert fired.text == (
        "frazil: freshness, stream rides of city.rides\n\n"
        f"{SENTENCE}\n"
        "since: 2033-05-18 03:33:20Z\n"
        "runbook: https://wiki.example/frazil#freshness\n"
        f"page: {PAGE}#/stream/rides"
    )
    assert fired.slack.splitlines()[-1] == (
        f"since: 2033-05-18 03:33:20Z · <https://wiki.example/frazil#freshness|runbook> · <{PAGE}#/stream/rides|page>"
    )
    assert f'<a href="{PAGE}#/stream/rides">' in fired.html
    assert "<code>frazil status rides</code>" in fired.html
    assert (fired.page, fired.runbook) == (f"{PAGE}#/stream/rides", "https://wiki.example/frazil#freshness")


@pytest.mark.parametrize(
    ("rule", "table", "about", "page"),
    [
        ("lag:rides", "city.rides", "stream rides of city.rides", "/stream/rides"),
        ("writer", "stream rides", "stream rides", "/stream/rides"),
        ("dead-letters:NotJson", "stream rides", "stream rides", "/stream/rides"),
        ("snapshots", "city.rides", "city.rides", "/table/city.rides"),
        ("held", "windows of city.rides", "city.rides", "/table/city.rides"),
        ("manifests", "route of shop", "route of shop", "/stream/shop"),
        ("aggregation:daily", "aggregation daily", "aggregation daily", "/"),
        ("runs:frazil_audits", "the DAG frazil_audits", "the DAG frazil_audits", "/"),
        ("writer", "stream a/b ?#", "stream a/b ?#", "/"),
    ],
)
def test_the_link_of_an_alert_opens_its_subject(rule: str, table: str, about: str, page: str) -> None:
    (one,) = reported(alert(rule, table)).problems
    assert (one.name, one.about, one.page) == (rule.partition(":")[0], about, f"{PAGE}#{page}")


def test_the_link_of_an_alert_about_a_window_opens_that_window() -> None:
    for rule, value, window in (
        ("held", "2 windows held, the first is 2013-12-30T15", "2013-12-30T15"),
        ("late-window", "2013-12-30 has been due for 2 h", "2013-12-30"),
    ):
        (one,) = reported({**alert(rule, "windows of city.rides"), "value": value}).problems
        assert one.page == f"{PAGE}#/table/city.rides?window={window}"


def test_a_resolved_message_has_the_key_of_the_fired_alert_and_the_number_of_active_ones() -> None:
    fired = reported(alert())
    over = reported(alert(sentence="city.rides: the alert freshness:rides is over: 0 records wait"), is_over=True)
    assert over.key == fired.key
    assert over.title == "frazil: over: freshness, stream rides of city.rides"
    assert over.text.endswith("\n\n1 alerts are active.")
    assert "was active since: 2033-05-18" in over.text
    assert reported(alert(), is_over=True, standing=0).text.endswith("No alert is active.")
    assert fired.key != reported(alert("freshness:taxis", "city.taxis")).key, "another alert is another incident"


def keys(*changed: dict[str, Any], active: list[dict[str, Any]], is_over: bool = False) -> list[tuple[str, str]]:
    message = build_message(changed, is_over=is_over, active=active, overview=PAGE)
    return [(one.name, one.key) for one in message.problems] if message else []


def test_a_stream_that_does_not_write_is_one_incident_with_one_notification_whatever_its_states() -> None:
    stall, writer, old = alert("stall", "stream rides"), alert("writer", "stream rides"), alert()
    other, letters = alert("stall", "stream taxis"), alert("dead-letters", "stream rides")
    (fired,) = keys(writer, stall, active=[writer, stall])
    assert fired[0] == "stall", "the cause, not what follows from it"
    assert keys(old, active=[stall, writer, old]) == [], "the incident was reported"
    both = keys(old, other, letters, active=[stall, old, other, letters])
    assert [name for name, _ in both] == ["stall", "dead-letters"], "another stream, and another kind of trouble"
    assert keys(stall, active=[old], is_over=True) == [], "it is not over"
    (over,) = keys(old, writer, active=[other], is_over=True)
    assert over[1] == fired[1], "the end has the key of the beginning"


def many(count: int = 300) -> list[dict[str, Any]]:
    return [
        alert(f"lag:s{n}" if n % 3 else f"freshness:s{n}", f"city.t{n}", f"{n} " + "x" * 5_000) for n in range(count)
    ]


def test_three_hundred_alerts_are_one_message_that_can_be_read() -> None:
    fired = reported(*many(), standing=300)
    assert fired.title == "frazil: 300 alerts: lag (200), freshness (100)"
    for text in (fired.text, fired.slack, fired.html):
        assert len(text) < MAX_SENTENCE_CHARACTERS + MAX_LISTED * 500
        assert "lag, stream s8 of city.t8" in text
        assert "stream s11" not in text
        assert f"And 290 more: {PAGE}" in text
    assert (fired.key, fired.page, fired.runbook) == (SEVERAL_KEY, PAGE, SERVED)


def test_each_alert_has_its_own_incident_up_to_the_number_that_a_user_can_follow() -> None:
    fired = reported(*many(), standing=300).each()
    assert [len(one.problems) for one in fired] == [1] * MAX_SEPARATE + [300 - MAX_SEPARATE]
    assert len({one.key for one in fired}) == MAX_SEPARATE + 1
    assert [one.key for one in reported(alert()).each()] == [reported(alert()).key]
    assert reported(*many(), standing=300).each() == fired, "twice is the same"


def test_each_opened_incident_is_closed_once() -> None:
    marked = [{**one, "alone": number < MAX_SEPARATE} for number, one in enumerate(many())]
    opened = [one.key for one in reported(*marked, standing=300).each()]
    closed = [one.key for one in reported(*marked, is_over=True, standing=0).each()]
    assert sorted(opened) == sorted(closed), "300 alerts are 21 incidents, and none stays open"
    assert reported(*marked[MAX_SEPARATE:], is_over=True, standing=MAX_SEPARATE).each() == (), (
        "theirs stands until nothing does"
    )
    (last,) = reported(marked[MAX_SEPARATE], is_over=True, standing=0).each()
    assert last.key == SEVERAL_KEY
    assert len(reported(*many(), is_over=True, standing=9).each()) == 300, "an earlier version remembered no more"


ODD = (
    "<!channel> <b>&amp;|*x*_y_~z~`a <https://evil.example|here>\r\nBcc: all@example.com"
    "\x00\u202e{{ var.value.key }}\ud800"
)


@pytest.mark.parametrize("text", [ODD, "", "x" * 100_000, "✓ 東京"])
def test_special_characters_in_an_alert_stay_text_in_every_message_format(text: str) -> None:
    message = reported(alert(f"dead-letters:{text}", f"stream {text}", text))
    assert len(message.title) <= MAX_TITLE_CHARACTERS
    assert message.title.isprintable()
    assert len(message.key) <= MAX_KEY_CHARACTERS
    assert max(map(len, message.text.splitlines())) <= MAX_SENTENCE_CHARACTERS + 200
    assert re.findall(r"<(?!https://airflow\.example)[^>]*>", message.slack) == [], "no mention and no other link"
    tags: list[str] = []
    parser = HTMLParser(convert_charrefs=True)
    parser.handle_starttag = lambda tag, _: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(message.html)
    assert set(tags) <= {"h3", "p", "br", "a", "b", "code"}
    assert "Bcc" not in {line.partition(":")[0] for line in message.title.splitlines()}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("my_table_name", "my_table_name"),
        ("_staging_", "\u02cdstaging\u02cd"),
        ("__init__ of ~/x", "\u02cd\u02cdinit\u02cd\u02cd of \u223c/x"),
        ("2 * 3 *all* 4*5", "2 \u2217 3 \u2217all\u2217 4*5"),
        ("`frazil status _a_` and `b", "`frazil status _a_` and \u02cbb"),
        ("```_x_``` a`_y_`b", "\u02cb\u02cb\u02cb\u02cdx\u02cd\u02cb\u02cb\u02cb a\u02cb\u02cdy\u02cd\u02cbb"),
    ],
)
def test_a_name_or_a_value_cannot_inject_slack_formatting(name: str, shown: str) -> None:
    said = reported(alert("snapshots", "city.t", name)).slack.splitlines()
    assert said[2] == shown
    assert reported(alert("snapshots", name)).slack.splitlines()[0] == f"*frazil: snapshots, {shown}*"


@pytest.mark.parametrize("foreign", [{}, {"rule": 3, "table": None, "since_ms": "now", "sentence": []}])
def test_an_incomplete_foreign_alert_is_reported_with_the_fields_that_it_has(foreign: dict[str, Any]) -> None:
    assert reported(foreign).text.startswith("frazil: ")


def test_without_airflows_address_the_page_is_named() -> None:
    message = reported(alert(), overview="")
    assert message.page == ""
    assert "page: Streams, in Airflow's navigation" in message.text
    assert "see Streams, in Airflow" in reported(*many(), overview="").html


def test_a_failed_task_reports_where_its_log_is() -> None:
    message = build_failed_task_message(
        dag_id="frazil_maintenance",
        task="table.rewrite[city.rides]",
        stream=None,
        table="city.rides",
        error="MaintenanceRefused: a line\nand another",
        since_ms=0,
        log="https://airflow.example/log",
        overview=PAGE,
    )
    assert message.title == "frazil: frazil_maintenance: table.rewrite[city.rides] failed, city.rides"
    assert (
        f"MaintenanceRefused: a line and another\nsince: 1970-01-01 00:00:00Z\nrunbook: {SERVED}#runs" in message.text
    )
    assert message.text.endswith("log: https://airflow.example/log")
    assert message.each() == (message,)


def test_a_late_run_is_reported_with_its_consequence_and_link() -> None:
    message = build_late_run_message(
        dag_id="frazil_health",
        sentence="no alert can fire",
        since_ms=0,
        run="https://airflow.example/run",
        overview=PAGE,
    )
    assert message.text == (
        "frazil: frazil_health: late\n\nno alert can fire\nsince: 1970-01-01 00:00:00Z\n"
        f"runbook: {SERVED}#runs\npage: {PAGE}#/\nlog: https://airflow.example/run"
    )
