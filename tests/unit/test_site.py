"""The documentation site has every page, and no page needs another host."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

OF_ANOTHER_HOST = re.compile(
    r'(?:src|srcset)="https?:|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+https?:|url\(https?:'
)


def build(into: Path, config: str = "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", str(into)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_the_site_has_every_page_in_its_navigation_and_needs_no_other_host(tmp_path: Path) -> None:
    done = build(tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = {str(page.relative_to(tmp_path / "site")): page.read_text() for page in tmp_path.rglob("*.html")}
    index = re.findall(r'<a href="([^"#]+)"[^>]*class="md-nav__link', pages["index.html"])
    missing = []
    for source in Path("docs").rglob("*.md"):
        page = source.relative_to("docs").with_suffix(".html").as_posix().replace("README.html", "index.html")
        if page not in pages or page not in index:
            missing.append(page)
    assert missing == []
    assert [name for name, text in pages.items() if OF_ANOTHER_HOST.search(text)] == []
    found = {
        entry["location"] for entry in json.loads((tmp_path / "site/search/search_index.json").read_text())["docs"]
    }
    assert "runbook.html#writer" in found


@pytest.mark.processes
def test_a_broken_link_fails_the_documentation_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("# Documentation\n\n## Pages\n\n- [One](one.md)\n")
    (tmp_path / "docs/one.md").write_text("# One\n\n[Two](two.md)\n")
    here = Path.cwd()
    config = (here / "mkdocs.yml").read_text().replace("deploy/docs_site.py", f"{here}/deploy/docs_site.py")
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "site", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0
    assert "two.md" in done.stderr
