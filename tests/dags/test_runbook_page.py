"""The runbook as the operations page serves it."""

from __future__ import annotations

import re

from frazil.airflow.page.runbook import render_runbook
from tests.alerts_page import RULES


def test_each_rule_has_an_entry_with_its_name_and_every_link_leads_somewhere() -> None:
    page = render_runbook()
    entries = {*re.findall(r'<h2 id="([^"]+)"', page)}
    assert {*RULES} <= entries
    links = {*re.findall(r'<a href="([^"]+)"', page)} - {"index.html#/"}
    assert {link for link in links if not link.startswith("https://")} <= {f"#{name}" for name in entries}
    assert "<table>" in page
    assert '<pre><code class="language-console">$ frazil status rides' in page
