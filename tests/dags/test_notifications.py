"""Notifiers are built and called, and their messages contain what an operator needs."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.providers.smtp.hooks.smtp import SmtpHook
from airflow.sdk import DAG, BaseNotifier
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow import each_alert
from frazil.airflow.dag_profile import deadline
from frazil.airflow.health import dag as health
from frazil.airflow.notifications import failure_message, with_message
from tests.dags.in_airflow import CHECKOUT
from tests.pages import blocks

PAGE = "docs/how-to/send-alerts.md"
SENT: list[tuple[str, dict[str, Any]]] = []


class StandIn(BaseNotifier):
    """A notifier of a provider that is not installed here, with the same arguments and templates."""

    needs: frozenset[str]
    takes: frozenset[str]

    def __init__(self, **given: Any) -> None:
        super().__init__()
        assert self.needs <= set(given) <= self.needs | self.takes | set(self.template_fields)
        vars(self).update(dict.fromkeys(self.template_fields), **given)

    def notify(self, context: Any) -> None:  # noqa: ARG002
        SENT.append((type(self).__name__, {field: getattr(self, field) for field in self.template_fields}))


class SlackWebhookNotifier(StandIn):
    """The interface of provider 9.11.1."""

    needs = frozenset({"text"})
    takes = frozenset({"unfurl_links", "unfurl_media", "retry_handlers"})
    template_fields = ("slack_webhook_conn_id", "text", "attachments", "blocks", "proxy", "timeout")


class PagerdutyNotifier(StandIn):
    """The interface of provider 5.3.1."""

    needs = frozenset({"summary", "severity"})
    takes = frozenset({"pagerduty_events_conn_id", "integration_key"})
    template_fields = (
        "summary", "severity", "source", "action", "dedup_key", "custom_details", "group", "component", "class_type",
        "images", "links",
    )  # fmt: skip

    def notify(self, context: Any) -> None:
        assert self.action in {"trigger", "acknowledge", "resolve"}
        assert self.severity in {"info", "warning", "error", "critical"}
        super().notify(context)


class Smtp:
    """The SMTP connection of the installed provider's notifier."""

    from_email = subject_template = html_content_template = None

    def __enter__(self) -> Smtp:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send_email_smtp(self, **mail: Any) -> None:
        SENT.append(("mail", mail))


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The page's files, as modules by the path on their first line."""
    SENT.clear()
    providers = {
        "airflow.providers.slack.notifications.slack_webhook": {"SlackWebhookNotifier": SlackWebhookNotifier},
        "airflow.providers.pagerduty.notifications.pagerduty": {"PagerdutyNotifier": PagerdutyNotifier},
        "alerts": {},
    }
    for name, contents in providers.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(SmtpHook, "__new__", lambda *_, **__: Smtp())
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")
    monkeypatch.setenv("FRAZIL_STREAMS", str(CHECKOUT / "include" / "streams"))
    found = {}
    for block in blocks(PAGE):
        if block.kind == "python":
            path = block.text.splitlines()[0].removeprefix("# ")
            found[path] = ModuleType(path.removesuffix(".py").replace("/", "."))
            monkeypatch.setitem(sys.modules, found[path].__name__, found[path])
            exec(compile(block.text, path, "exec"), vars(found[path]))
    return found


def alert(stream: str = "rides") -> dict[str, Any]:
    return {
        "rule": f"freshness:{stream}", "table": f"city.{stream}", "value": "", "since_ms": 0,
        "sentence": f"stream {stream} does not commit", "runbook": "https://wiki.example/runbook#freshness",
    }  # fmt: skip


def context(task_id: str, **measured: Any) -> dict[str, Any]:
    """The context that Airflow passes to a callback of `frazil_health`."""
    found = {"fired": [], "resolved": [], "active": [], **measured}
    ti = SimpleNamespace(
        dag_id="frazil_health",
        task_id=task_id,
        rendered_map_index=None,
        start_date=datetime(2033, 5, 18, tzinfo=UTC),
        log_url="https://airflow.example/log",
        xcom_pull=lambda task_ids: found if task_ids == "measure" else None,
    )
    return {"ti": ti, "dag": DAG("frazil_health"), "exception": AirflowFailException("a text")}


def reported(notifier: Any, **measured: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return what a notifier sent when an alert fired and when it resolved."""
    SENT.clear()
    with_message(notifier, health._fired_message)(context("alerts", **measured))
    with_message(notifier, partial(health._message, kind="resolved"))(context("resolved", **measured))
    return list(SENT)


def test_slack_is_notified_when_an_alert_fires_and_when_it_resolves(examples: dict[str, ModuleType]) -> None:
    to_platform = examples["alerts/slack.py"].to_platform
    assert reported(to_platform) == [], "nothing fired"
    assert reported(to_platform, active=[alert()]) == [], "it was told when it fired"
    ((_, fired),) = reported(to_platform, fired=[alert()], active=[alert()])
    assert fired["slack_webhook_conn_id"] == "slack_alerts"
    assert fired["text"].startswith("*frazil: freshness, stream rides of city.rides*\n\nstream rides does not commit\n")
    assert "<https://airflow.example/frazil/ops/index.html#/stream/rides|page>" in fired["text"]
    assert "<https://wiki.example/runbook#freshness|runbook>" in fired["text"]
    ((_, over),) = reported(to_platform, resolved=[alert()])
    assert over["text"].startswith("*frazil: over: freshness"), "the notifier tells each time what it is called for"
    assert len(reported(to_platform, fired=[alert(f"s{n}") for n in range(300)], active=[{}] * 300)) == 1


def test_a_mail_has_a_one_line_subject_and_links(examples: dict[str, ModuleType]) -> None:
    ((_, mail),) = reported(examples["alerts/mail.py"].to_platform, fired=[alert()], active=[alert()])
    assert (mail["to"], mail["subject"]) == ("platform@example.com", "frazil: freshness, stream rides of city.rides")
    assert '<a href="https://wiki.example/runbook#freshness">' in mail["html_content"]


def test_pagerduty_has_an_incident_for_each_alert_and_each_is_closed(examples: dict[str, ModuleType]) -> None:
    pager = examples["alerts/pager.py"]
    both = [alert("rides"), alert("taxis")]
    opened = reported(pager.page, fired=both, active=both)
    assert [event["action"] for _, event in opened] == ["trigger", "trigger"]
    assert [event["summary"] for _, event in opened] == [
        "frazil: freshness, stream rides of city.rides",
        "frazil: freshness, stream taxis of city.taxis",
    ]
    assert opened[1][1]["links"] == [
        {"href": "https://airflow.example/frazil/ops/index.html#/stream/taxis", "text": "operations page"}
    ]
    closed = reported(pager.resolve, resolved=both)
    assert {event["action"] for _, event in closed} == {"resolve"}
    assert {event["dedup_key"] for _, event in opened} <= {event["dedup_key"] for _, event in closed}
    assert reported(pager.page, fired=both, active=both) == opened, "twice: PagerDuty knows the key"
    many = [alert(f"s{n}") for n in range(300)]
    assert len(reported(pager.page, fired=many, active=many)) == 21


def test_the_documented_dag_notifies_slack_of_everything_and_the_pager_of_alerts(
    examples: dict[str, ModuleType],
) -> None:
    dag = examples["dags/maintenance.py"].health
    for task_id, callbacks in (("alerts", "on_failure_callback"), ("resolved", "on_success_callback")):
        called = getattr(dag.get_task(task_id), callbacks)
        assert [call.__name__ for call in called] == ["SlackWebhookNotifier", "EachAlert"]


@pytest.mark.parametrize("is_away", [False, True])
def test_an_alert_whose_notification_failed_is_sent_again_after_the_others(
    is_away: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keys: list[str] = []

    def fragile(given: Any) -> None:
        key = given["frazil"].key.removesuffix("/not writing")
        keys.append(key)
        if key.endswith("s0") and (is_away or keys.count(key) == 1):
            raise ConnectionError("the chat is away")

    three = [alert(f"s{n}") for n in range(3)]
    with pytest.raises(ConnectionError, match="the chat is away") if is_away else nullcontext():
        reported(each_alert(fragile), fired=three, active=three)
    assert [key[-2:] for key in keys] == ["s0", "s1", "s2", "s0"]
    assert "cannot send the notification: frazil: freshness, stream s0 of city.s0" in caplog.text


LATE: list[dict[str, Any]] = []


async def on_late(**reported: Any) -> None:
    LATE.append(reported)


async def of_old(*, sentence: str) -> None:
    LATE.append({"sentence": sentence})


@pytest.mark.parametrize("function", [on_late, of_old])
def test_a_late_run_is_reported_with_all_fields_of_other_messages(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    LATE.clear()
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")
    made = deadline(timedelta(minutes=15), sentence="no alert can fire", on_late=function).callback
    run = {"dag_id": "frazil_health", "dag_run_id": "scheduled 1", "queued_at": "2033-05-18T08:30:00Z"}
    module, _, name = made.path.rpartition(".")
    asyncio.run(getattr(import_module(module), name)(**made.kwargs, context={"dag_run": run}))
    (reported,) = LATE
    assert reported["sentence"] == "no alert can fire"
    if function is on_late:
        assert reported["context"]["dag_run"] == run
        message = reported["context"]["frazil"]
        assert message.title == "frazil: frazil_health: late"
        assert (
            "\nsince: 2033-05-18 08:30:00Z\nrunbook: https://airflow.example/frazil/ops/runbook.html#runs\n"
            in message.text
        )
        assert message.text.endswith("log: https://airflow.example/dags/frazil_health/runs/scheduled%201")
        assert message.page == "https://airflow.example/frazil/ops/index.html#/"


def test_foreign_values_in_airflow_do_not_stop_a_notifier() -> None:
    said: list[str] = []
    call = with_message(lambda given: said.append(given["frazil"].text), health._fired_message)
    call(context("alerts", fired="nonsense"))
    call(context("alerts", fired=[7, {"rule": 3}], active=[7]))
    assert said[0].startswith("frazil: frazil_health: alerts failed\n\na text\nsince: 2033-05-18 00:00:00Z")
    assert said[1].startswith("frazil: 3")


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AirflowFailException("the catalog does not answer"), "the catalog does not answer"),
        (KeyError("at"), "KeyError: 'at'"),
        (ValueError(), "ValueError()"),
        (None, "Airflow reports no reason"),
        (Wordless(), "Wordless"),
    ],
)
def test_a_failed_task_is_reported_with_its_reason_its_table_and_its_log(error: Exception | None, said: str) -> None:
    given = context("table.rewrite")
    given["ti"].dag_id, given["ti"].rendered_map_index, given["exception"] = "frazil_maintenance", "city.rides", error
    message = failure_message(given)
    assert message.title == "frazil: frazil_maintenance: table.rewrite[city.rides] failed, city.rides"
    assert said in message.text
    assert "log: https://airflow.example/log" in message.text


def test_a_failure_is_reported_for_an_incomplete_task_context(tmp_path: Path) -> None:
    assert f"{tmp_path} is full" in failure_message({"reason": f"{tmp_path} is full"}).text
