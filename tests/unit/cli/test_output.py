"""How sentences are told."""

from __future__ import annotations

import pytest

from frazil.cli.output import lines_of, said_of


@pytest.mark.parametrize(
    ("sentence", "lines"),
    [
        ("All is well.", ["All is well."]),
        ("`frazil resume shop` starts it", ["`frazil resume shop` starts it"]),
        ("by this name, see: `frazil route shop` says what mends that", None),
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
def test_each_command_after_a_colon_has_a_line(sentence: str, lines: list[str] | None) -> None:
    assert lines_of(sentence) == (lines or [sentence])


def test_a_sentence_names_what_it_is_about_once() -> None:
    assert said_of("a.b", "table a.b of the route is gone") == "table a.b of the route is gone"
    assert said_of("a.b", "it is gone") == "a.b: it is gone"
