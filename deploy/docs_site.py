"""Makes a site of docs/ for mkdocs, with the navigation of docs/README.md and the linked files outside of docs/.

The pages are written for readers of the repository. So a link to a folder gets a page that lists it, and a file outside
of docs/ is below `repository/` in the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

OUTSIDE = "repository"
INDEX = "README.md"
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
LISTED = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<target>[^)\s#:]+)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
INTERRUPTED = re.compile(r"^(?![-*] |\d+\. |\s|\|)(.+)\n(?=[-*] |\d+\. )", re.MULTILINE)
"""A paragraph directly followed by a list: GitHub renders the list, Python-Markdown renders text."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read the navigation: each heading of docs/README.md, with the pages that its list names."""
    docs = Path(config.docs_dir)
    head, *sections = re.split(r"^## ", (docs / INDEX).read_text(), flags=re.MULTILINE)
    seen = {INDEX}
    config.nav = [INDEX, *_entries(head, docs, seen)]
    for section in sections:
        title, text = section.split("\n", 1)
        config.nav.append({title: _entries(text, docs, seen)})
    return config


def _entries(text: str, docs: Path, seen: set[str]) -> list[Any]:
    found: list[Any] = []
    for match in LISTED.finditer("\n".join(line for line in text.splitlines() if not line.startswith("| "))):
        page, title = _in_site(INDEX, match["target"]), match["title"]
        if page in seen:
            continue
        seen.add(page)
        folder = docs / page
        if folder.is_dir():
            found.append({title: [f"{page}/{name}" for name in (INDEX, *_pages(folder))]})
        else:
            found.append({title: page})
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the targets of links: lists of folders, and files of the repository."""
    docs, todo = Path(config.docs_dir), [file for file in files if file.is_documentation_page()]
    while todo:
        file = todo.pop()
        for match in LINK.finditer(FENCE.sub("", file.content_string)):
            uri = _in_site(file.src_uri, match["target"])
            made = _made(uri, docs, config)
            if made is not None and files.get_file_from_path(made.src_uri) is None:
                files.append(made)
                todo += [made] if made.is_documentation_page() else []
    return files


def _made(uri: str, docs: Path, config: MkDocsConfig) -> File | None:
    if uri.startswith(f"{OUTSIDE}/"):
        source = docs.parent / PurePosixPath(uri).relative_to(OUTSIDE)
        if not source.is_file():
            return None
        return File.generated(config, uri, content=source.read_bytes(), inclusion=InclusionLevel.NOT_IN_NAV)
    folder = docs / uri
    if not folder.is_dir():
        return None
    lines = [f"- [{_title(folder / name)}]({name})" for name in _pages(folder)]
    return File.generated(config, f"{uri}/{INDEX}", content="\n".join(["# Design decisions", "", *lines, ""]))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to the site's paths, and start lists where GitHub starts them."""

    def led(match: re.Match[str]) -> str:
        uri = _in_site(page.file.src_uri, match["target"])
        if (Path(config.docs_dir) / uri).is_dir():
            uri = f"{uri}/{INDEX}"
        if files.get_file_from_path(uri) is None:
            return match[0]
        return os.path.relpath(uri, PurePosixPath(page.file.src_uri).parent) + (match["anchor"] or "")

    parts = FENCE.split(markdown)
    for n in range(0, len(parts), 2):
        parts[n] = INTERRUPTED.sub(r"\1\n\n", LINK.sub(led, parts[n]))
    return "".join(parts)


def _in_site(page: str, target: str) -> str:
    """The target of a page's link: a path below docs/, or a file of the repository below `repository/`."""
    repository = page.startswith(f"{OUTSIDE}/")
    at = PurePosixPath("docs", page) if not repository else PurePosixPath(page).relative_to(OUTSIDE)
    path = PurePosixPath(os.path.normpath(at.parent / target))
    return str(path.relative_to("docs")) if path.parts[:1] == ("docs",) else f"{OUTSIDE}/{path}"


def _pages(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.md"))


def _title(page: Path) -> str:
    return page.read_text().split("\n", 1)[0].removeprefix("# ")
