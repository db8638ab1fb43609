"""How messages are printed."""

from __future__ import annotations

import shlex

import click
import pytest

from frazil.cli.output import ask, echo_table, split_commands, wrap_command


@pytest.mark.parametrize(
    ("sentence", "lines"),
    [
        ("All is well.", ["All is well."]),
        ("`frazil resume shop` starts it", ["`frazil resume shop` starts it"]),
        ("by this name, see: `frazil route shop` shows the remedy", None),
        (
            "it is gone; if it was dropped: `frazil register a 'b c'`; or let it go: `frazil route shop --give-up a`",
            [
                "it is gone; if it was dropped:",
                "    frazil register a 'b c'",
                "or let it go:",
                "    frazil route shop --give-up a",
            ],
        ),
        ("mend it: `frazil validate`. Then start", ["mend it:", "    frazil validate", "Then start"]),
    ],
)  # fmt: skip
def test_each_command_after_a_colon_is_on_its_own_line(sentence: str, lines: list[str] | None) -> None:
    assert split_commands(sentence) == (lines or [sentence])


def test_a_command_longer_than_the_screen_wraps_with_shell_continuations() -> None:
    command = (
        "frazil register shop.orders 's3://a b/metadata/00012-of.metadata.json' --streams /a/folder/of/streams --yes"
    )
    reported = wrap_command(f"    {command}", 60)
    assert len(reported.splitlines()) == 3
    assert all(len(line) <= 60 for line in reported.splitlines())
    assert shlex.split(reported.replace("\\\n", "")) == shlex.split(command)
    assert wrap_command(f"    {command}", 200) == f"    {command}"
    assert wrap_command("a sentence of many words", 10) == "a sentence of many words"


def test_a_sentence_may_begin_with_a_colon() -> None:
    assert split_commands(": `frazil x`.") == [":", "    frazil x"]


def test_a_table_on_a_narrow_terminal_keeps_its_words_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # counts as a terminal
    monkeypatch.setenv("COLUMNS", "30")
    columns = ("stream", "desired", "last commit", "watermark", "table")
    echo_table(columns, [("rides", "running", "3 min ago", "2026-01-02 08:00:00Z", "city.rides")])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("watermark", "last commit", "2026-01-02 08:00:00Z", "city.rides"))


def test_a_closed_standard_input_cannot_answer_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(click.ClickException, match="no terminal, so nothing was changed"):
        ask("Reset?", yes=False)
