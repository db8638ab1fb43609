"""How texts of users and producers are escaped before they are shown."""

from __future__ import annotations

import json
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.host.process_log import SafeFormatter
from frazil.operations.message import ReportedProblem
from frazil.safe_text import escape_unsafe, reason_problem

ANY = st.text(st.characters(codec=None), max_size=40)
REORDERS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(ANY)
def test_escaped_text_can_be_written_and_moves_no_cursor(text: str) -> None:
    shown = escape_unsafe(text)
    shown.encode()
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} and c not in "\t\n"]
    assert not [c for c in shown if unicodedata.bidirectional(c) in REORDERS]
    assert escape_unsafe(shown) == shown
    assert "\n" not in escape_unsafe(text, lines=False)
    assert json.loads(json.dumps(shown)) == shown


@pytest.mark.parametrize("text", ["", "a\tb\nc", "Grüße, 東京, שלום", "1\xa0000 → ok", "\U0001f469\u200d\U0001f680"])
def test_readable_text_is_not_escaped(text: str) -> None:
    assert escape_unsafe(text) == text


def test_control_characters_are_escaped() -> None:
    assert escape_unsafe("\x1b[2J\u202egnp.exe\ud800\r") == r"\x1b[2J\u202egnp.exe\ud800\r"


def test_a_reason_with_undisplayable_or_too_many_characters_is_refused() -> None:
    assert reason_problem("the upgrade of Kafka 🚀") is None
    assert "the character \\ud800" in (reason_problem("a\ud800b") or "")
    assert "the character \\x1b" in (reason_problem("\x1b[2J") or "")
    assert "1,001 characters; write at most 1,000" in (reason_problem("a" * 1001) or "")


def test_control_characters_are_escaped_in_logs_and_messages() -> None:
    record = logging.LogRecord("frazil", logging.INFO, "", 0, "record %s", ("\x1b]0;\ud800\u202e",), None)
    assert SafeFormatter("%(message)s").format(record) == r"record \x1b]0;\ud800\u202e"
    reported = ReportedProblem.from_alert({"rule": "lag", "sentence": "\x1b[31m\u202e", "table": "a.b"}, page="")
    assert reported.sentence == r"\x1b[31m\u202e"
