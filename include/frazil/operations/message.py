"""Builds the messages about alerts and failed tasks for notifiers, in three formats and of limited size. Pure.

A message names the problem, the stream or table, the start time, and the addresses of the runbook and the operations
page. Quoted text stays on one line, and cannot format the message or mention a user.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import quote, urljoin

from frazil.maintenance.alert_rules import RUNBOOK, runbook_link
from frazil.safe_text import safe
from frazil.timetext import utc

MAX_LISTED = 10
"""Maximum number of alerts listed in one message; the others are counted."""
MAX_SEPARATE = 20
"""Maximum number of simultaneous alerts that `each` sends separately; the others share one message."""
MAX_SENTENCE_CHARACTERS = 4_000
"""Maximum length of all sentences of a message together."""
MAX_TITLE_CHARACTERS = 200
MAX_KEY_CHARACTERS = 255
"""PagerDuty's maximum length of a deduplication key."""
SEVERAL = "frazil/several"
"""The deduplication key of every message about several alerts."""
MAX_RULES = 5
NOT_WRITING = ("table", "stall", "registry", "writer", "restarts", "waiting-batches", "freshness", "lag")
"""Rules that fire because a stream does not write, causes first. Together they are one incident of the stream."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One alert or one failed task in a message."""

    name: str
    """The alert's rule without its subject, such as `freshness`; or the failed task."""
    about: str
    """The stream or the table, such as `stream rides of city.rides`."""
    sentence: str
    since_ms: int | None
    runbook: str
    page: str
    """The URL of the stream or table on the operations page; empty if Airflow does not know its own URL."""
    key: str
    """The deduplication key: an alert has the same key when it fires and when it resolves."""
    log: str = ""
    alone: bool = True
    """Whether `each` sent this alert in a message of its own when it fired."""

    @classmethod
    def from_alert(cls, alert: Mapping[str, Any], *, page: str) -> Self:
        """Parse an alert that `Alert.to_json` wrote, without trusting its content. `page` is the page's URL."""
        subject, rule, since = str(alert.get("table", "")), str(alert.get("rule", "")), alert.get("since_ms")
        name, _, rule_subject = rule.partition(":")
        stream = rule_subject if name in {"freshness", "lag"} else ""
        about = f"stream {stream} of {subject}" if stream else subject.removeprefix("care of ")
        return cls(
            name=_line(name, MAX_TITLE_CHARACTERS) or "an alert",
            about=_line(about, MAX_TITLE_CHARACTERS),
            sentence=_line(str(alert.get("sentence", "")), MAX_SENTENCE_CHARACTERS),
            since_ms=since if isinstance(since, int) else None,
            runbook=_line(_served(str(alert.get("runbook") or runbook_link(rule)), page), MAX_SENTENCE_CHARACTERS),
            page=page and f"{page}#{_page_path(stream, subject)}",
            key=_key(f"frazil/{_incident(alert) or f'{subject}/{rule}'}"),
            alone=alert.get("alone") is not False,
        )


@dataclass(frozen=True, slots=True)
class Message:
    """A notification. Templates use its properties: `{{ frazil.title }}`, `{{ frazil.slack }}`."""

    troubles: tuple[Trouble, ...]
    """The alerts, or the one failed task; never empty."""
    key: str
    """PagerDuty's `dedup_key`, the same when an alert fires and when it resolves."""
    is_over: bool = False
    standing: int | None = None
    """The number of alerts that are active now; None for a failed task."""
    overview: str = ""

    @property
    def page(self) -> str:
        return self.troubles[0].page if len(self.troubles) == 1 else self.overview

    @property
    def runbook(self) -> str:
        """The runbook entry that all alerts share, otherwise the runbook's first page."""
        entries = {one.runbook for one in self.troubles}
        return entries.pop() if len(entries) == 1 else self.troubles[0].runbook.partition("#")[0]

    @property
    def title(self) -> str:
        """One line, such as `frazil: freshness, stream rides of city.rides`."""
        over = "over: " if self.is_over else ""
        if len(self.troubles) == 1:
            (one,) = self.troubles
            return _line(f"frazil: {over}{one.name}" + (f", {one.about}" if one.about else ""), MAX_TITLE_CHARACTERS)
        kinds = Counter(one.name for one in self.troubles).most_common()
        counted = ", ".join(f"{name} ({count:,})" for name, count in kinds[:MAX_RULES])
        more = ", …" if len(kinds) > MAX_RULES else ""
        return _line(f"frazil: {over}{len(self.troubles):,} alerts: {counted}{more}", MAX_TITLE_CHARACTERS)

    @property
    def text(self) -> str:
        blocks = [self.title]
        for one in self._listed():
            head = [f"{one.name}, {one.about}"] if len(self.troubles) > 1 else []
            facts = [f"{name}: {value}" for name, value in self._facts(one)]
            blocks.append("\n".join([*head, self._sentence(one), *facts]))
        return "\n\n".join([*blocks, *self._rest()])

    @property
    def slack(self) -> str:
        blocks = [f"*{_slack(self.title)}*"]
        for one in self._listed():
            head = [f"*{_slack(f'{one.name}, {one.about}')}*"] if len(self.troubles) > 1 else []
            facts = [
                f"<{value}|{name}>" if _is_address(value) else f"{name}: {_slack(value)}"
                for name, value in self._facts(one)
            ]
            blocks.append("\n".join([*head, _slack(self._sentence(one)), " · ".join(facts)]))
        return "\n\n".join([*blocks, *map(_slack, self._rest())])

    @property
    def html(self) -> str:
        """The message as HTML, for the body of an e-mail."""
        blocks = [f"<h3>{html.escape(self.title)}</h3>"]
        for one in self._listed():
            head = f"<b>{html.escape(f'{one.name}, {one.about}')}</b><br>" if len(self.troubles) > 1 else ""
            facts = "<br>".join(
                f'{name}: <a href="{html.escape(value)}">{html.escape(value)}</a>'
                if _is_address(value)
                else f"{name}: {html.escape(value)}"
                for name, value in self._facts(one)
            )
            sentence = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(self._sentence(one)))
            blocks.append(f"<p>{head}{sentence}<br>{facts}</p>")
        return "\n".join([*blocks, *(f"<p>{html.escape(line)}</p>" for line in self._rest())])

    def each(self) -> tuple[Message, ...]:
        """Return a message for each alert; if more than `MAX_SEPARATE` fire, the others share one message.

        Alerts resolve in the grouping in which they fired. The shared message resolves when no alert is active.
        """
        alone = [one for one in self.troubles if one.alone][: None if self.is_over else MAX_SEPARATE]
        made = [replace(self, troubles=(one,), key=one.key) for one in alone]
        rest = self.troubles if self.is_over else tuple(one for one in self.troubles if one not in alone)
        if rest and (not self.is_over or self.standing == 0):
            made.append(replace(self, troubles=rest, key=SEVERAL))
        return tuple(made)

    def _listed(self) -> tuple[Trouble, ...]:
        return self.troubles[:MAX_LISTED]

    def _sentence(self, one: Trouble) -> str:
        return _line(one.sentence, MAX_SENTENCE_CHARACTERS // len(self._listed()))

    def _facts(self, one: Trouble) -> list[tuple[str, str]]:
        since = [("stood since" if self.is_over else "since", utc(one.since_ms))] if one.since_ms is not None else []
        page = one.page or "Streams, in Airflow's navigation"
        return [*since, ("runbook", one.runbook), ("page", page), *([("log", one.log)] if one.log else [])]

    def _rest(self) -> list[str]:
        more = len(self.troubles) - MAX_LISTED
        lines = [f"And {more:,} more: {self.overview or 'see Streams, in Airflow'}"] if more > 0 else []
        if self.standing is not None and (self.is_over or self.standing > len(self.troubles)):
            lines.append(f"{self.standing:,} alerts are active." if self.standing else "No alert is active.")
        return lines


def build_message(
    alerts: Iterable[Mapping[str, Any]], *, is_over: bool, active: Sequence[Mapping[str, Any]], overview: str
) -> Message | None:
    """Return the message for alerts that fired or resolved; None if there is nothing to report.

    `active` are all active alerts, with those that fired. Of a stream that does not write, only the first alert is
    reported, and its end once no other alert of the same incident is active.
    """
    changed = _once_for_each_incident([*alerts], active, is_over=is_over)
    troubles = tuple(Trouble.from_alert(alert, page=overview) for alert in changed)
    standing = len(active)
    if not troubles:
        return None
    key = troubles[0].key if len(troubles) == 1 else SEVERAL
    return Message(troubles, key, is_over, standing, overview)


def _incident(alert: Mapping[str, Any]) -> str:
    """Return the incident of an alert about a stream that does not write; empty for any other alert."""
    subject, (rule, _, of) = str(alert.get("table", "")), str(alert.get("rule", "")).partition(":")
    kind, _, name = subject.rpartition(" ")
    stream = of or (name if kind == "stream" else "")
    return f"stream {stream}/not writing" if stream and rule in NOT_WRITING else ""


def _once_for_each_incident(
    changed: list[Mapping[str, Any]], active: Sequence[Mapping[str, Any]], *, is_over: bool
) -> list[Mapping[str, Any]]:
    """Return the changed alerts to report: one for each incident, when its first alert fires and its last one ends."""
    fired = set() if is_over else {(one.get("table"), one.get("rule")) for one in changed}
    standing = {_incident(one) for one in active if (one.get("table"), one.get("rule")) not in fired}
    first: dict[str, Mapping[str, Any]] = {}
    for one in sorted(changed, key=_cause_first):
        first.setdefault(_incident(one), one)
    reported = {incident: one for incident, one in first.items() if incident and incident not in standing}
    return [one for one in changed if not _incident(one) or one is reported.get(_incident(one))]


def _cause_first(alert: Mapping[str, Any]) -> int:
    rule = str(alert.get("rule", "")).partition(":")[0]
    return NOT_WRITING.index(rule) if rule in NOT_WRITING else 0


def failed_task(  # noqa: PLR0913 - what Airflow has about it, each in a keyword
    *,
    dag_id: str,
    task: str,
    stream: str | None,
    table: str | None,
    error: str,
    since_ms: int | None,
    log: str,
    overview: str,
) -> Message:
    """Return the message for a task that failed after its last retry. `task` includes the name of its map index."""
    trouble = _run_trouble(f"{dag_id}: {task} failed", error, f"{dag_id}/{task}", page_path(stream, table), overview)
    about = _line(f"stream {stream}" if stream else table or "", MAX_TITLE_CHARACTERS)
    trouble = replace(trouble, about=about, since_ms=since_ms, log=log)
    return Message((trouble,), trouble.key, overview=overview)


def late_run(*, dag_id: str, sentence: str, since_ms: int | None, run: str, overview: str) -> Message:
    """Return the message for a run past its deadline. `run` is the run's URL; it was queued at `since_ms`."""
    trouble = _run_trouble(f"{dag_id}: late", sentence, f"{dag_id}/late", "/", overview)
    trouble = replace(trouble, since_ms=since_ms, log=run)
    return Message((trouble,), trouble.key, overview=overview)


def _run_trouble(name: str, sentence: str, key: str, path: str, overview: str) -> Trouble:
    return Trouble(
        name=_line(name, MAX_TITLE_CHARACTERS),
        about="",
        sentence=_line(sentence, MAX_SENTENCE_CHARACTERS),
        since_ms=None,
        runbook=_served(runbook_link("runs"), overview),
        page=overview and f"{overview}#{path}",
        key=_key(f"frazil/{key}"),
    )


def page_path(stream: str | None, table: str | None) -> str:
    """Return the part after # of the operations page's URL, for a table, a stream or (without either) the overview."""
    kind, name = ("table", table) if table else ("stream", stream)
    return f"/{kind}/{quote(name, safe='', errors='replace')}" if name and len(name) <= MAX_TITLE_CHARACTERS else "/"


def _page_path(stream: str, subject: str) -> str:
    kind, _, name = subject.rpartition(" ")
    if stream or kind in {"stream", "route of"}:
        return page_path(stream or name, None)
    return page_path(None, name if kind in {"", "care of"} else None)


def _served(runbook: str, overview: str) -> str:
    """Return the address at which the operations page serves frazil's own runbook; a team's runbook stays itself."""
    if not overview or not runbook.startswith(RUNBOOK):
        return runbook
    return urljoin(overview, f"runbook.html{runbook.removeprefix(RUNBOOK)}")


def _line(text: str, limit: int) -> str:
    """Reduce a text to one line of at most `limit` printable characters."""
    line = safe(" ".join(text.split()), lines=False)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _key(text: str) -> str:
    if len(text) <= MAX_KEY_CHARACTERS:
        return text
    return f"{text[: MAX_KEY_CHARACTERS - 17]}/{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"


def _slack(text: str) -> str:
    """Escape Slack's control characters, and replace formatting marks that would take effect.

    Slack has no escape for a formatting mark, so a similar-looking character replaces it. Marks within a word, as in
    `my_table_name`, and within backquotes have no effect in Slack, and stay.
    """
    parts = _CODE.split(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    parts[::2] = [_MARKS.sub(lambda mark: mark[0].translate(_ALIKE), plain) for plain in parts[::2]]
    return "".join(parts)


_CODE = re.compile(r"(?<![A-Za-z0-9`])(`[^`\s](?:[^`]*[^`\s])?`)(?![A-Za-z0-9`])")
_MARKS = re.compile(r"(?<![A-Za-z0-9])[*_~]|[*_~](?![A-Za-z0-9])|`")
_ALIKE = str.maketrans("*_~`", "\u2217\u02cd\u223c\u02cb")


def _is_address(text: str) -> bool:
    return re.fullmatch(r"https?://[^\s<>|\"]+", text) is not None
