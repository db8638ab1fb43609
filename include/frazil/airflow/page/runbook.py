"""Renders the runbook as a page, so that each alert links to its entry wherever Airflow is reached."""

from __future__ import annotations

from importlib.resources import files
from itertools import pairwise

from markdown_it import MarkdownIt

HEAD = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <title>Runbook</title>
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <link rel="icon" href="data:,">
    <link rel="stylesheet" href="page.css">
    <script type="module" src="runbook.js"></script>
  </head>
  <body>
    <main id="page" class="book" tabindex="-1">
      <nav class="way" aria-label="Where you are"><a href="index.html#/">Streams</a> / Runbook</nav>
"""


def render() -> str:
    """Return the runbook as HTML. Its entries have the ids that `runbook_link` names; other pages are not served."""
    text = (files("frazil.airflow.page") / "static" / "runbook.md").read_text()
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            heading.attrSet("id", inline.content)
    for token in (child for one in tokens for child in one.children or ()):
        if token.type == "link_open" and not str(token.attrGet("href")).startswith(("#", "https://")):
            token.attrs = {}
    return f"{HEAD}{markdown.renderer.render(tokens, markdown.options, {})}</main></body></html>\n"
