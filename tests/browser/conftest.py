"""A real API server of Airflow, and headless Chromium that looks at it."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from frazil import clock
from frazil.dev.process import free_port
from frazil.spec.load import load_stream
from tests.dags import in_airflow
from tests.dags.in_airflow import AirflowProcess
from tests.made_batches import MadeStream
from tests.polling import eventually

if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="frazil-airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
YAML = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: {table}
schema: {{id: long, at: timestamptz not null}}
event-time: at
partition-by: [hour(at)]
"""
Open = Callable[..., Page]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser of this machine. Where there is none, and the tests run as root on Debian, it is installed."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
            with suppress(subprocess.SubprocessError):
                subprocess.run(command, check=False, capture_output=True, timeout=200)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("there is no Chromium: install it (Debian: apt-get install chromium)")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """For one module: as long as it runs, Playwright keeps an event loop running in this thread of pytest."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Declared streams: one with commits, one that never began, one whose file is broken."""
    folder = tmp_path_factory.mktemp("world")
    streams = folder / "streams"
    streams.mkdir()
    for name in ("ticks", "young"):
        (streams / f"{name}.yaml").write_text(YAML.format(name=name, table=f"demo.{name}"))
    (streams / "wrong.yaml").write_text("name: wrong\nschema: {id: lung}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAZIL_HOME", str(folder / "home"))
        moment = pa.timestamp("us", tz="UTC")
        made = MadeStream(
            load_stream(streams / "ticks.yaml"),
            clock.now_ms(),
            partitions=2,
            columns=lambda rows: {"at": pa.array([clock.now_ms() * 1000] * rows, pa.int64()).cast(moment)},
        )
        for n in range(4):
            made.land({0: (n * 10, n * 10 + 10), 1: (n * 5, n * 5 + 5)}, rejected={0: [n * 10]})
    return folder


@pytest.fixture(scope="module")
def server(world: Path) -> Iterator[tuple[str, AirflowProcess]]:
    """The address of the API server, and its process."""
    port = free_port()
    process = AirflowProcess(
        world / "airflow",
        FRAZIL_HOME=str(world / "home"),
        FRAZIL_STREAMS=str(world / "streams"),
        AIRFLOW__API_AUTH__JWT_SECRET="s" * 64,
        AIRFLOW__API__BASE_URL=f"http://127.0.0.1:{port}",
    )
    process.call(in_airflow.make_database)
    process.call(in_airflow.serve, port)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{url}/api/v2/version", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    eventually(answers, within_s=60, every_s=0.2)
    yield url, process
    process.end()


@pytest.fixture
def open_page(browser: Browser, server: tuple[str, AirflowProcess]) -> Iterator[Open]:
    """`open_page(path, role="VIEWER", theme="dark", width=400)`: whatever the page complains of fails the test."""
    url, process = server
    contexts: list[Any] = []
    complaints: list[str] = []

    def opened(path: str, *, role: str = "ADMIN", theme: str = "light", width: int = 1200) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        context.add_cookies([{"name": "_token", "value": process.call(in_airflow.token, role), "url": url}])
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.goto(f"{url}{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
