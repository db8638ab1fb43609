"""Finds English that must be read twice, in docstrings, comments, messages, names and docs.

`python -m tests.prose` counts the findings of each room. With a folder, it lists the findings there. With `--write`, it
stores the counts to which tests/unit/test_prose.py holds the repository.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

COUNTS = Path("tests/unit/prose_counts.json")
CODE = ("include/frazil", "dags", "spark_apps", "plugins", "deploy", "demo", "bench", "tests")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", "docs")
MAX_WORDS = 30
MAX_COLUMNS = 120

OPENINGS = re.compile(
    r"(Of|By|With|Without|From|Also|As|For|In|On|At|To|Into|Under|Among|So|Whether of|"
    r"Who|Whose|Which|Where|Not|Nor|None)\b"
)
PHRASES = {
    "say or know of": r"\b(say|says|said|tell|tells|told|known?|knows|warned|asked|heard?) of\b",
    "so many, as a limit": r"\b([Ss]o (many|long|often|much|few|old)\b(?!( [a-z]+)* that\b)|at the (most|least)\b)",
    "nobody, somebody, whoever": r"\b([Nn]obody|[Ss]omebody|[Ww]hoever|[Ww]homever)\b",
    "is none": r"(?<!there )\b(is|are|was|were) none\b|\b(is|are) no whole\b",
    "is there, for exists": r"\b(that|which|what|who|nothing) (is|are|was|were) (not |no longer |still )?there\b",
    "old words": r"\b([Aa]new|any more|[Ss]hall|[Ll]ack(s|ed|ing)?|[Mm]end(s|ed|ing)?|[Bb]eside|where(of|by)|hence)\b",
    "of which": r"\b[Oo]f (which|whose|whom)\b",
    "be told": r"\b(is|are|was|were|be|been|being|not|nor|yet) told\b",
}
WRONG = {reason: re.compile(pattern) for reason, pattern in PHRASES.items()}
RENAMED = {
    "most": "MAX_",
    "least": "MIN_",
    "told": "reported, published",
    "look": "fetch, poll, observation",
    "looks": "fetches, polls",
    "looked": "fetched, polled",
    "judge": "evaluate",
    "judged": "evaluated",
    "verdict": "result",
    "lane": "backfill branch",
    "lanes": "backfill branches",
    "mend": "fix",
    "mended": "fixed",
    "sighting": "schema drift",
    "sightings": "schema drift",
    "beat": "heartbeat",
    "beats": "heartbeats",
    "patience": "RetryPolicy",
    "happening": "StreamEvent",
    "happenings": "StreamEvents",
    "asked": "requested",
    "tick": "empty commit",
    "ticks": "empty commits",
}
SENTENCES = {"asked", "most", "least", "judge", "judged", "verdict", "tick", "ticks", "look", "looks"}
"""Words that the name of a test, which reads as a sentence, may have."""
KEYS = {"most", "at_most", "at_least"}
"""Keys of a declaration, such as `maintenance.expiry.at-least`, and the values named after them."""
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
SENTENCE = re.compile(r"(?<=[.!?])[`\"')*]*\s+|\n\s*\n|\n\s*(?:[-*+]|\d+\.) +|\s\|\s")
CODE_IN_TEXT = re.compile(r"`[^`\n]+`")
FENCE = re.compile(r"^ *```.*?^ *```|<!--.*?-->", re.MULTILINE | re.DOTALL)


class Finding(NamedTuple):
    path: Path
    line: int
    reason: str
    text: str


def findings(roots: Iterable[str] = (*CODE, *PAGES)) -> Iterator[Finding]:
    """Yield all findings in the modules and pages of these folders and files."""
    for root in map(Path, roots):
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix == ".py":
                yield from _in_module(path)
            elif path.suffix == ".md" and path.as_posix().startswith(PAGES):
                yield from _in_page(path)


def counts(found: Iterable[Finding]) -> dict[str, int]:
    """Count the findings per room: a folder of the package or of the unit tests, or else a top-level folder."""
    return dict(sorted(Counter(_room(finding.path) for finding in found).items()))


def _room(path: Path) -> str:
    parts = path.parts
    depth = 3 if parts[0] in ("include", "tests") and len(parts) > 3 else 2
    return "/".join(parts[: min(depth, len(parts) - 1)]) or "."


def _in_module(path: Path) -> Iterator[Finding]:
    source = path.read_text()
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr) and _is_text(node.value)}
    within = set()  # lines inside of strings, where a # begins no comment
    names: dict[str, int] = {}
    for node in nodes:
        if _is_text(node) or isinstance(node, ast.JoinedStr):
            within.update(range(node.lineno + (node not in docstrings), (node.end_lineno or 0) + 1))
        if node in docstrings:
            text = str(getattr(node, "value", ""))
            if OPENINGS.match(text.strip()):
                yield Finding(path, node.lineno, "opening", _shortened(text))
            yield from _in_text(path, node.lineno, text)
        elif path.parts[0] != "tests" and (message := _message(node)):
            yield from _in_text(path, node.lineno, message)
        for name in _defined_names(node):
            names.setdefault(name, node.lineno)
    for line, text in _comments(source, within):
        yield from _in_text(path, line, text)
    for name, line in names.items():
        allowed = SENTENCES if name.startswith("test_") else set()
        for word in () if name in KEYS else WORDS.findall(name):
            if word.lower() in RENAMED.keys() - allowed:
                yield Finding(path, line, f"name: use {RENAMED[word.lower()]}", name)


def _in_page(path: Path) -> Iterator[Finding]:
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), path.read_text())
    line = 1
    for block in re.split(r"(\n\s*\n)", text):
        yield from _in_text(path, line, block)
        line += block.count("\n")
    for number, row in enumerate(text.splitlines(), 1):
        if len(row) > MAX_COLUMNS and not row.lstrip().startswith(("|", "!", "<", "[")):
            yield Finding(path, number, "long line", _shortened(row))


def _in_text(path: Path, line: int, text: str) -> Iterator[Finding]:
    for reason, pattern in WRONG.items():
        for match in pattern.finditer(CODE_IN_TEXT.sub(lambda code: "`" * len(code[0]), text)):
            around = text[max(0, match.start() - 60) : match.end() + 60]
            yield Finding(path, line + text.count("\n", 0, match.start()), reason, _shortened(around))
    for sentence in SENTENCE.split(text):
        if len(re.findall(r"[^\s|]*[A-Za-z][^\s|]*", sentence)) > MAX_WORDS:
            yield Finding(path, line, "long sentence", _shortened(sentence))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _message(node: ast.AST) -> str | None:
    """Return a string of at least four words, with {} for f-string values. An f-string counts as one string."""
    if isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    else:
        return None
    return text if text.count(" ") >= 3 and not re.match(r"\s*(SELECT|CREATE|INSERT|UPDATE|DELETE|\{)", text) else None


def _defined_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def _comments(source: str, within: set[int]) -> Iterator[tuple[int, str]]:
    """Yield a module's comments, each with its first line's number. Consecutive lines are one comment."""
    block: list[str] = []
    first = 0
    for number, row in enumerate([*source.splitlines(), ""], 1):
        if "#" in row and number not in within and (match := re.search(r"(^|\s)# (.*)", row)):
            first = first if block else number
            block.append(match[2])
        elif block:
            yield first, "\n".join(block)
            block = []


def _shortened(text: str) -> str:
    return " ".join(text.split())[:160]


def main(arguments: list[str]) -> None:
    if roots := [argument for argument in arguments if argument != "--write"]:
        for finding in findings(roots):
            print(f"{finding.path}:{finding.line}: {finding.reason}: {finding.text}")
        return
    found = list(findings())
    if "--write" in arguments:
        COUNTS.write_text(json.dumps(counts(found), indent=1) + "\n")
    print(*(f"{count:6} {room}" for room, count in counts(found).items()), sep="\n")
    print(*(f"{count:6} {reason}" for reason, count in Counter(f.reason for f in found).most_common()), sep="\n")
    print(f"{len(found):6} in all")


if __name__ == "__main__":
    main(sys.argv[1:])
