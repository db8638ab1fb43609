"""Measures the load time of the operations page, and the API server's cost while the page is open.

    python -m bench.page [--streams 1 30 300] [--minutes 10 --open 30]
    python -m bench.page --screenshots docs/images

Creates the streams (tests/troubled_world.py), some in trouble and one whose catalog hangs. Airflow's own API server
serves them to headless Chromium. For each number of streams, prints the milliseconds from the navigation until every
row of the overview exists, and until each row has its state. Cold is a new browser's first request to a new API server;
warm is the median of five reloads. Prints the same for a stream's and a table's view. With `--minutes`, the page stays
open for this time with `--open` streams: prints CPU seconds and memory (PSS) of the API server's processes, with and
without the page.

With `--screenshots`, only takes the screenshots for the documentation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from bench.meter.process_tree import SampledTree
from frazil.dev.kafka import EmbeddedKafka
from tests.api_server import ApiServer, api_server
from tests.chromium import installed
from tests.troubled_world import troubled_world

PAGE = "/frazil/ops/index.html"
ROWS = "n => document.querySelectorAll('tbody th[scope=row]').length >= n"
STATES = "() => ![...document.querySelectorAll('.badge')].some(badge => badge.textContent === 'loading')"
VIEW = "name => document.querySelector('h1')?.textContent === name && !document.querySelector('.skeleton')"
WHOLE = "() => !document.querySelector('.skeleton') && !document.body.textContent.includes('Loading the table')"
RELOADS = 5
PICTURES = {
    "overview": ("", None, 1200),
    "stream": ("#/stream/clicks", None, 1700),
    "table": ("#/table/shop.shipments", None, 1700),
    "dialog": ("#/stream/refunds", "Reset …", 800),
}
"""Each picture's view, the button to press there, and the maximum height."""
WIDTH, HEIGHT = 1200, 800
ENDS = """most => Math.max(...[...document.querySelectorAll("main > *, .charts figure, .lines tr")]
    .filter(part => !part.nextElementSibling?.matches(".why"))
    .map(part => part.getBoundingClientRect().bottom + scrollY).filter(end => end <= most))"""
"""The end of the last whole part of a view."""


@contextmanager
def served(streams: int | None, *, commits: int) -> Iterator[ApiServer]:
    """Start a new API server with new streams."""
    with tempfile.TemporaryDirectory(prefix="frazil-page-") as name, EmbeddedKafka(Path(name) / "kafka") as kafka:
        folder = Path(name) / "world"
        folder.mkdir()
        with (
            troubled_world(folder, kafka, commits=commits, streams=streams) as world,
            api_server(folder / "airflow", world.environment, without="suppliers") as server,
        ):
            yield server


@contextmanager
def chromium() -> Iterator[Browser]:
    path = installed()
    if path is None:
        raise SystemExit("there is no Chromium: install it (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def new_page(browser: Browser, server: ApiServer, *, theme: str = "light") -> Page:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme)  # type: ignore[arg-type]
    context.add_cookies([server.cookie("OP")])  # type: ignore[list-item]
    return context.new_page()


def loaded_ms(page: Page, server: ApiServer, at: str, *conditions: tuple[str, object]) -> list[int]:
    """Return the milliseconds from the start of the navigation until each condition was true."""
    page.goto("about:blank")
    page.goto(f"{server.url}{PAGE}{at}", wait_until="commit")
    found = []
    for condition, argument in conditions:
        page.wait_for_function(condition, arg=argument, polling="raf")
        found.append(round(page.evaluate("performance.now()")))
    return found


def measure(streams: int) -> None:
    """Print the load times."""
    views = {
        "overview": ("", (ROWS, streams), (STATES, None)),
        "stream": ("#/stream/orders", (VIEW, "orders"), (WHOLE, None)),
        "table": ("#/table/shop.orders", (VIEW, "shop.orders"), (WHOLE, None)),
    }
    with served(streams, commits=60) as server, chromium() as browser:
        for name, (at, *conditions) in views.items():
            page = new_page(browser, server)
            cold = loaded_ms(page, server, at, *conditions)
            warm = [loaded_ms(page, server, at, *conditions) for _ in range(RELOADS)]
            warm_ms = [round(statistics.median(times)) for times in zip(*warm, strict=True)]
            print(
                f"{streams} streams, {name}: cold {cold} ms, warm {warm_ms} ms (there, and complete); {load()}",
                flush=True,
            )
            page.context.close()


def stay_open(streams: int, minutes: float) -> None:
    """Print the API server's CPU and memory without the page, and while the page is open."""
    with served(streams, commits=60) as server, chromium() as browser:
        root = server.process.pid
        page = new_page(browser, server)
        loaded_ms(page, server, "", (ROWS, streams), (STATES, None))
        page.goto("about:blank")
        phases = (("no page", "about:blank", min(minutes, 2)), ("the overview open", f"{server.url}{PAGE}", minutes))
        for what, at, lasts in phases:
            page.goto(at)
            tree, began = SampledTree(root), time.monotonic()
            before, peak = tree.cpu_s().total(), 0
            while time.monotonic() - began < lasts * 60:
                page.wait_for_timeout(2_000)
                peak = max(peak, pss_bytes(root))
            spent, wall_s = tree.cpu_s().total() - before, time.monotonic() - began
            print(
                f"{streams} streams, {what} for {wall_s:.0f} s: {spent:.2f} s of CPU ({spent / wall_s:.4f} cores), "
                f"{peak / 2**20:.0f} MiB at most; {load()}",
                flush=True,
            )


def pss_bytes(root: int) -> int:
    """Return the memory of a process and its descendants."""
    processes = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    return sum(process.memory_full_info().pss for process in processes)


def load() -> str:
    return f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def screenshots(folder: Path) -> None:
    """Write the pictures, in both themes."""
    with served(None, commits=90) as server, chromium() as browser:
        for theme in ("light", "dark"):
            for name, (at, press, peak) in PICTURES.items():
                page = new_page(browser, server, theme=theme)
                page.goto(f"{server.url}{PAGE}{at}")
                page.wait_for_function(WHOLE)
                page.wait_for_function(STATES)
                page.wait_for_load_state("networkidle")
                if press is not None:
                    page.get_by_role("button", name=press).click()
                    page.get_by_label("Continue").select_option("latest")
                    page.get_by_text("their records never reach the table").wait_for()
                    height = HEIGHT
                else:
                    height = int(page.evaluate(ENDS, peak))
                _picture(page, folder / f"page-{name}-{theme}.png", height)
                page.context.close()


def _picture(page: Page, path: Path, height: int) -> None:
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": WIDTH, "height": height}, full_page=True)
    with Image.open(path) as image:
        # Median cut, the default, gives the few pixels of a small mark the colour of something else.
        coverage, none = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        image.convert("RGB").quantize(256, coverage, kmeans=8, dither=none).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} kB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 30, 300])
    parser.add_argument("--minutes", type=float, default=0, help="how long the page stays open")
    parser.add_argument("--open", type=int, default=30, help="over how many streams")
    parser.add_argument("--screenshots", type=Path, help="write the pictures into this folder, and measure nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="frazil-airflow-") as home:
        os.environ["AIRFLOW_HOME"] = home  # importing Airflow makes its configuration there
        if options.screenshots:
            screenshots(options.screenshots)
            return
        for streams in options.streams:
            measure(streams)
        if options.minutes:
            stay_open(options.open, options.minutes)


if __name__ == "__main__":
    main()
