"""Airflow's real API server with streams in trouble, and headless Chromium that opens its pages."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from frazil.dev.kafka import EmbeddedKafka
from tests import chromium as chromium_of_tests
from tests.api_server import ApiServer, api_server
from tests.troubled_world import TroubledWorld, troubled_world

if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="frazil-airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

MEMORY = Path("/dev/shm")
COMMITS = 13
PAGE = "/frazil/ops/index.html"
Open = Callable[..., Page]
WITHIN_MS = 30_000
expect.set_options(timeout=WITHIN_MS)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of this machine's browser. Install one if it is missing and the tests run as root on Debian."""
    found = chromium_of_tests.installed() or (chromium_of_tests.install() if chromium_of_tests.may_install() else None)
    if found is None:
        pytest.skip("there is no Chromium: install it (Debian: apt-get install chromium)")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Start one browser per module. While it runs, Playwright keeps an event loop running in pytest's thread."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="package")
def world(
    chromium: str,  # noqa: ARG001 - nothing is made where there is no browser
    kafka: EmbeddedKafka,
) -> Iterator[TroubledWorld]:
    """Create the world in memory if possible, because on disk its tables and databases would wait for writes."""
    with (
        tempfile.TemporaryDirectory(prefix="frazil-page-", dir=MEMORY if MEMORY.is_dir() else None) as folder,
        troubled_world(Path(folder), kafka, commits=COMMITS) as made,
    ):
        yield made


@pytest.fixture(scope="package")
def server(world: TroubledWorld, airflow_database: Path) -> Iterator[ApiServer]:
    home = world.folder / "airflow"
    with api_server(home, world.environment, without="suppliers", database=airflow_database) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, server: ApiServer) -> Iterator[Open]:
    """`open_page(path, role="VIEWER", theme="dark", width=400)` opens a page. Errors in its console fail the test."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def opened(path: str, *, role: str = "ADMIN", theme: str = "light", width: int = 1200) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        context.add_cookies([server.cookie(role)])
        page = context.new_page()
        page.set_default_timeout(WITHIN_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.goto(f"{server.url}{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def settled(page: Page, heading: str) -> None:
    """Wait until the view is visible and has loaded completely."""
    expect(page.get_by_role("heading", level=1, name=heading, exact=True)).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)
    expect(page.get_by_text("loading", exact=True)).to_have_count(0)
    expect(page.get_by_text("Loading the table …")).to_have_count(0)


def view(page: Page, at: str, heading: str) -> None:
    """Go to another view of the open page."""
    page.evaluate("at => { location.hash = at; }", at)
    settled(page, heading)


def desired(world: TroubledWorld, stream: str) -> dict[str, Any]:
    """Return a stream's desired state, from the object next to its table."""
    (found,) = (world.folder / "home").rglob(f"_frazil/{stream}/desired.json")
    return dict(json.loads(Path(found).read_text()))
