"""Builds the messages about alerts and failed tasks for notifiers, in three formats and of limited size. Pure. Quoted
text stays on one line, and cannot format the message or mention a user.
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

from frazil.maintenance.alerts import DEFAULT_RUNBOOK, runbook_link
from frazil.safe_text import escape_unsafe, shorten
from frazil.timetext import format_utc

MAX_LISTED = 10
MAX_SEPARATE = 20
"""Maximum number of simultaneous alerts that `each` sends separately; the others share one message."""
MAX_SENTENCE_CHARACTERS = 4_000
"""Maximum length of all sentences of a message together."""
MAX_TITLE_CHARACTERS = 200
MAX_KEY_CHARACTERS = 255
"""PagerDuty's maximum length of a deduplication key."""
SEVERAL_KEY = "frazil/several"
"""The deduplication key of every message about several alerts."""
MAX_TITLE_RULES = 5
WINDOW_RULES = ("held", "late-window")
NOT_WRITING_RULES = ("table", "stall", "registry", "writer", "restarts", "waiting-batches", "freshness", "lag")
"""Rules whose alerts mean that a stream does not write, causes first. All such alerts of a stream are one incident."""


@dataclass(frozen=True, slots=True)
class ReportedProblem:
    name: str
    """The alert's rule without its subject, such as `freshness`; or the failed task."""
    about: str
    """The stream or table, such as `stream rides of city.rides`."""
    sentence: str
    since_ms: int | None
    runbook: str
    page: str
    """The subject's URL on the operations page; empty if Airflow does not know its own URL."""
    key: str
    log: str = ""
    alone: bool = True
    """Whether `each` sent this alert separately when it fired."""

    @classmethod
    def from_alert(cls, alert: Mapping[str, Any], *, page: str) -> Self:
        """Parse an alert that `Alert.to_json` wrote, without trusting its content. `page` is the page's URL."""
        subject, rule, since = str(alert.get("table", "")), str(alert.get("rule", "")), alert.get("since_ms")
        name, _, rule_subject = rule.partition(":")
        stream = rule_subject if name in {"freshness", "lag"} else ""
        about = f"stream {stream} of {subject}" if stream else subject.removeprefix("windows of ")
        return cls(
            name=_one_line(name, MAX_TITLE_CHARACTERS) or "an alert",
            about=_one_line(about, MAX_TITLE_CHARACTERS),
            sentence=_one_line(str(alert.get("sentence", "")), MAX_SENTENCE_CHARACTERS),
            since_ms=since if isinstance(since, int) else None,
            runbook=_one_line(
                _runbook_url(str(alert.get("runbook") or runbook_link(rule)), page), MAX_SENTENCE_CHARACTERS
            ),
            page=page and f"{page}#{_page_path(stream, subject)}{_window_query(name, alert)}",
            key=_bounded_key(f"frazil/{_incident_of(alert) or f'{subject}/{rule}'}"),
            alone=alert.get("alone") is not False,
        )


@dataclass(frozen=True, slots=True)
class Message:
    """A notification. Templates use its properties: `{{ frazil.title }}`, `{{ frazil.slack }}`."""

    problems: tuple[ReportedProblem, ...]
    """The alerts, or the one failed task; never empty."""
    key: str
    """PagerDuty's `dedup_key`, the same when an alert fires and when it resolves."""
    is_over: bool = False
    standing: int | None = None
    """The number of alerts that are active now; None for a failed task."""
    overview: str = ""

    @property
    def page(self) -> str:
        """The operations page's URL of the stream or table, if the message is about one; otherwise of the overview."""
        return self.problems[0].page if len(self.problems) == 1 else self.overview

    @property
    def runbook(self) -> str:
        """The URL of the runbook entry that all alerts share, otherwise of the runbook itself."""
        entries = {problem.runbook for problem in self.problems}
        return entries.pop() if len(entries) == 1 else self.problems[0].runbook.partition("#")[0]

    @property
    def title(self) -> str:
        """One line, such as `frazil: freshness, stream rides of city.rides`."""
        over = "over: " if self.is_over else ""
        if len(self.problems) == 1:
            problem = self.problems[0]
            about = f", {problem.about}" if problem.about else ""
            return _one_line(f"frazil: {over}{problem.name}{about}", MAX_TITLE_CHARACTERS)
        kinds = Counter(problem.name for problem in self.problems).most_common()
        counts = ", ".join(f"{name} ({count:,})" for name, count in kinds[:MAX_TITLE_RULES])
        ellipsis = ", …" if len(kinds) > MAX_TITLE_RULES else ""
        return _one_line(f"frazil: {over}{len(self.problems):,} alerts: {counts}{ellipsis}", MAX_TITLE_CHARACTERS)

    @property
    def text(self) -> str:
        blocks = [self.title]
        for problem in self._listed_problems():
            head = [f"{problem.name}, {problem.about}"] if len(self.problems) > 1 else []
            facts = [f"{name}: {value}" for name, value in self._list_facts(problem)]
            blocks.append("\n".join([*head, self._short_message(problem), *facts]))
        return "\n\n".join([*blocks, *self._closing_lines()])

    @property
    def slack(self) -> str:
        blocks = [f"*{_escape_slack(self.title)}*"]
        for problem in self._listed_problems():
            head = [f"*{_escape_slack(f'{problem.name}, {problem.about}')}*"] if len(self.problems) > 1 else []
            facts = [
                f"<{value}|{name}>" if _is_url(value) else f"{name}: {_escape_slack(value)}"
                for name, value in self._list_facts(problem)
            ]
            blocks.append("\n".join([*head, _escape_slack(self._short_message(problem)), " · ".join(facts)]))
        return "\n\n".join([*blocks, *map(_escape_slack, self._closing_lines())])

    @property
    def html(self) -> str:
        blocks = [f"<h3>{html.escape(self.title)}</h3>"]
        for problem in self._listed_problems():
            head = f"<b>{html.escape(f'{problem.name}, {problem.about}')}</b><br>" if len(self.problems) > 1 else ""
            facts = "<br>".join(
                f'{name}: <a href="{html.escape(value)}">{html.escape(value)}</a>'
                if _is_url(value)
                else f"{name}: {html.escape(value)}"
                for name, value in self._list_facts(problem)
            )
            sentence = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(self._short_message(problem)))
            blocks.append(f"<p>{head}{sentence}<br>{facts}</p>")
        return "\n".join([*blocks, *(f"<p>{html.escape(line)}</p>" for line in self._closing_lines())])

    def each(self) -> tuple[Message, ...]:
        """Return a message per alert. Alerts beyond `MAX_SEPARATE` share one. It resolves once none is active."""
        alone = [problem for problem in self.problems if problem.alone][: None if self.is_over else MAX_SEPARATE]
        messages = [replace(self, problems=(problem,), key=problem.key) for problem in alone]
        others = self.problems if self.is_over else tuple(problem for problem in self.problems if problem not in alone)
        if others and (not self.is_over or self.standing == 0):
            messages.append(replace(self, problems=others, key=SEVERAL_KEY))
        return tuple(messages)

    def _listed_problems(self) -> tuple[ReportedProblem, ...]:
        return self.problems[:MAX_LISTED]

    def _short_message(self, problem: ReportedProblem) -> str:
        return _one_line(problem.sentence, MAX_SENTENCE_CHARACTERS // len(self._listed_problems()))

    def _list_facts(self, problem: ReportedProblem) -> list[tuple[str, str]]:
        since = "was active since" if self.is_over else "since"
        begin = [(since, format_utc(problem.since_ms))] if problem.since_ms is not None else []
        page = problem.page or "Streams, in Airflow's navigation"
        return [*begin, ("runbook", problem.runbook), ("page", page), *([("log", problem.log)] if problem.log else [])]

    def _closing_lines(self) -> list[str]:
        unlisted = len(self.problems) - MAX_LISTED
        lines = [f"And {unlisted:,} more: {self.overview or 'see Streams, in Airflow'}"] if unlisted > 0 else []
        if self.standing is not None and (self.is_over or self.standing > len(self.problems)):
            lines.append(f"{self.standing:,} alerts are active." if self.standing else "No alert is active.")
        return lines


def build_message(
    alerts: Iterable[Mapping[str, Any]], *, is_over: bool, active: Sequence[Mapping[str, Any]], overview: str
) -> Message | None:
    """Return the message about alerts that fired or resolved, or None. A stream that does not write is one incident."""
    changed = _select_reported([*alerts], active, is_over=is_over)
    problems = tuple(ReportedProblem.from_alert(alert, page=overview) for alert in changed)
    if not problems:
        return None
    return Message(problems, problems[0].key if len(problems) == 1 else SEVERAL_KEY, is_over, len(active), overview)


def _incident_of(alert: Mapping[str, Any]) -> str:
    """Return the incident of an alert that a stream does not write; otherwise an empty string."""
    subject, (rule, _, stream_name) = str(alert.get("table", "")), str(alert.get("rule", "")).partition(":")
    kind, _, name = subject.rpartition(" ")
    stream = stream_name or (name if kind == "stream" else "")
    return f"stream {stream}/not writing" if stream and rule in NOT_WRITING_RULES else ""


def _select_reported(
    changed: list[Mapping[str, Any]], active: Sequence[Mapping[str, Any]], *, is_over: bool
) -> list[Mapping[str, Any]]:
    """Return the changed alerts to report. An incident is reported once when it begins and once when it ends."""
    fired = set() if is_over else {(alert.get("table"), alert.get("rule")) for alert in changed}
    standing = {_incident_of(alert) for alert in active if (alert.get("table"), alert.get("rule")) not in fired}
    first: dict[str, Mapping[str, Any]] = {}
    for alert in sorted(changed, key=_cause_order):
        first.setdefault(_incident_of(alert), alert)
    reported = {incident: alert for incident, alert in first.items() if incident and incident not in standing}
    return [alert for alert in changed if not _incident_of(alert) or alert is reported.get(_incident_of(alert))]


def _cause_order(alert: Mapping[str, Any]) -> int:
    rule = str(alert.get("rule", "")).partition(":")[0]
    return NOT_WRITING_RULES.index(rule) if rule in NOT_WRITING_RULES else 0


def build_failed_task_message(  # noqa: PLR0913 - what Airflow has about it, each in a keyword
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
    """Return the message about a task that failed after its last retry. `task` includes a mapped instance's label."""
    trouble = _run_problem(f"{dag_id}: {task} failed", error, f"{dag_id}/{task}", page_path(stream, table), overview)
    about = _one_line(f"stream {stream}" if stream else table or "", MAX_TITLE_CHARACTERS)
    trouble = replace(trouble, about=about, since_ms=since_ms, log=log)
    return Message((trouble,), trouble.key, overview=overview)


def build_late_run_message(*, dag_id: str, sentence: str, since_ms: int | None, run: str, overview: str) -> Message:
    """Return the message about a run past its deadline. `run` is the run's URL; the run was queued at `since_ms`."""
    trouble = _run_problem(f"{dag_id}: late", sentence, f"{dag_id}/late", "/", overview)
    trouble = replace(trouble, since_ms=since_ms, log=run)
    return Message((trouble,), trouble.key, overview=overview)


def _run_problem(name: str, sentence: str, key: str, path: str, overview: str) -> ReportedProblem:
    return ReportedProblem(
        name=_one_line(name, MAX_TITLE_CHARACTERS),
        about="",
        sentence=_one_line(sentence, MAX_SENTENCE_CHARACTERS),
        since_ms=None,
        runbook=_runbook_url(runbook_link("runs"), overview),
        page=overview and f"{overview}#{path}",
        key=_bounded_key(f"frazil/{key}"),
    )


def page_path(stream: str | None, table: str | None) -> str:
    kind, name = ("table", table) if table else ("stream", stream)
    return f"/{kind}/{quote(name, safe='', errors='replace')}" if name and len(name) <= MAX_TITLE_CHARACTERS else "/"


def _page_path(stream: str, subject: str) -> str:
    kind, _, name = subject.rpartition(" ")
    if stream or kind in {"stream", "route of"}:
        return page_path(stream or name, None)
    return page_path(None, name if kind in {"", "windows of"} else None)


def _window_query(rule: str, alert: Mapping[str, Any]) -> str:
    match = re.search(r"\d{4}-\d\d-\d\d(?:T\d\d)?", str(alert.get("value", ""))) if rule in WINDOW_RULES else None
    return f"?window={match[0]}" if match else ""


def _runbook_url(runbook: str, overview: str) -> str:
    """Return a runbook's URL. frazil's own runbook is a file next to the operations page."""
    if not overview or not runbook.startswith(DEFAULT_RUNBOOK):
        return runbook
    return urljoin(overview, f"runbook.html{runbook.removeprefix(DEFAULT_RUNBOOK)}")


def _one_line(text: str, limit: int) -> str:
    return shorten(escape_unsafe(" ".join(text.split()), lines=False), limit)


def _bounded_key(text: str) -> str:
    if len(text) <= MAX_KEY_CHARACTERS:
        return text
    return f"{text[: MAX_KEY_CHARACTERS - 17]}/{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"


def _escape_slack(text: str) -> str:
    """Escape control characters. Formatting marks have no escape, so similar characters replace them."""
    parts = _CODE.split(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    parts[::2] = [_MARKS.sub(lambda mark: mark[0].translate(_SIMILAR_MARKS), plain) for plain in parts[::2]]
    return "".join(parts)


_CODE = re.compile(r"(?<![A-Za-z0-9`])(`[^`\s](?:[^`]*[^`\s])?`)(?![A-Za-z0-9`])")
_MARKS = re.compile(r"(?<![A-Za-z0-9])[*_~]|[*_~](?![A-Za-z0-9])|`")
_SIMILAR_MARKS = str.maketrans("*_~`", "\u2217\u02cd\u223c\u02cb")


def _is_url(text: str) -> bool:
    return re.fullmatch(r"https?://[^\s<>|\"]+", text) is not None
