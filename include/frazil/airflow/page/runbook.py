"""Renders the runbook as a page."""

from __future__ import annotations

from importlib.resources import files
from itertools import pairwise

from markdown_it import MarkdownIt


def render_runbook() -> str:
    """Return the runbook as a page. Omits links to other pages, because Airflow does not serve these."""
    static = files("frazil.airflow.page") / "static"
    text = (static / "runbook.md").read_text()
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            heading.attrSet("id", inline.content)
    for token in (child for parent in tokens for child in parent.children or ()):
        if token.type == "link_open" and not str(token.attrGet("href")).startswith(("#", "https://")):
            token.attrs = {}
    shown = markdown.renderer.render(tokens, markdown.options, {})
    return (static / "runbook-frame.html").read_text().replace("<!-- runbook -->", shown)
