"""Reads the code blocks of the documentation: their kinds, the commands in them, and the output that they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
HEREDOC = re.compile(r"^([^\n]*?) *<<'END'\n(.*?)^END\n", re.MULTILINE | re.DOTALL)
SEPARATORS = frozenset(";|&\n()")
KEYWORDS = frozenset({"until", "while", "for", "do", "done", "if", "then", "else", "fi"})


@dataclass(frozen=True)
class Block:
    """A fenced block: its place, its kind (the word after the fence), and its text without a list's indentation."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def program(self) -> str:
        """The text for a shell: all of `sh`; of `console`, only the lines after a prompt."""
        if self.kind == "sh":
            return self.text
        return "".join(f"{line[2:]}\n" for line in self.text.splitlines() if line.startswith("$ "))

    def heredocs(self) -> list[tuple[str, str]]:
        """Return each command that reads a here-document in the block, with that text."""
        return HEREDOC.findall(self.program)

    def commands(self) -> list[list[str]]:
        """Return each simple command as words, without redirections."""
        return list(_simple_commands(HEREDOC.sub(r"\1\n", self.program)))

    def answers(self) -> list[tuple[str, str]]:
        """Return each command of `console`, and the output that the page shows."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        return list(zip(parts[1::2], parts[2::2], strict=True))


@cache
def blocks(page: str) -> list[Block]:
    text = (CHECKOUT / page).read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[2], re.sub(f"(?m)^{found[1]}", "", found[3]))
        for found in FENCED.finditer(text)
    ]


def section(page: str, heading: str) -> list[Block]:
    """Return the blocks below a heading of a page, including those below its subheadings."""
    lines = FENCED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), (CHECKOUT / page).read_text()).splitlines()
    level = heading.partition(" ")[0]
    first = lines.index(heading) + 1
    ends = (n for n, line in enumerate(lines[first:], first + 1) if re.match(rf"#{{1,{len(level)}}} ", line))
    last = next(ends, len(lines) + 1)
    return [block for block in blocks(page) if first < block.line < last]


def says(output: str, shown: str) -> bool:
    """Return whether the output matches what a page shows. `…` matches the rest of a line, or, alone, any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else r".*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in (line.rstrip() for line in shown.strip().splitlines())
    )
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in output.strip().splitlines())) is not None


def alike(output: str, shown: str) -> bool:
    """Return whether the output matches what a page shows, with other numbers, times and widths; `…` as in `says`."""
    return says(_without_numbers(output), _without_numbers(shown))


def _without_numbers(text: str) -> str:
    return re.sub(r" +", " ", re.sub(r"\d[\d,.:TZ-]*", "N", text))


def all_blocks() -> list[Block]:
    pages = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
    return [block for page in pages for block in blocks(str(page.relative_to(CHECKOUT)))]


def _simple_commands(program: str) -> Iterator[list[str]]:
    plain = re.sub(r"(^|\s)# .*$", "", program.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=";|&()<>\n")
    lexer.whitespace, lexer.commenters = " \t", ""
    lexer.wordchars += "$:{}#[]@%!^,…"
    words: list[str] = []
    redirected = False
    for word in lexer:
        if set(word) <= SEPARATORS:
            if words:
                yield words
            words = []
        elif set(word) <= set("<>&"):
            redirected = True
            if words and words[-1].isdigit():
                words.pop()
        elif redirected:
            redirected = False
        elif words or not (word in KEYWORDS or re.match(r"\w+=", word)):
            words.append(word)
    if words:
        yield words
