"""Writes the Data Docs: one page for each gate run, and an index. The pages need no network.

Great Expectations' own pages load scripts, styles and images from a dozen hosts, and its site builder rereads every
earlier run. So Great Expectations renders only the results; frazil writes the rest of the page and the index.

<docs>/index.html                    links to the newest runs
<docs>/runs.jsonl                    one line for each run; the source of the index
<docs>/<table>/<partition>-<time>.html    the page of one run
"""

from __future__ import annotations

import fcntl
import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from frazil.quality.gate import GateRequest

TEMPLATES = Path(__file__).with_name("templates")
MAX_INDEXED_RUNS = 1000
"""Maximum number of runs, the newest, to which the index links; the pages of older runs stay."""


@dataclass(frozen=True, slots=True)
class GateRun:
    """Facts about a run, shown at the head of its page, above the expectations."""

    request: GateRequest
    at: datetime
    rows: int
    failures: tuple[str, ...]
    engine: str
    seconds: float


def write_pages(run: GateRun, expectations: str) -> Path:
    """Write this run's page and update the index; return the page's path. `expectations` must be safe HTML."""
    docs = run.request.docs
    page = docs / _safe_name(run.request.table) / f"{_safe_name(run.request.partition)}-{run.at:%Y%m%dT%H%M%S%f}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    templates = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    page.write_text(templates.get_template("run.html").render(run=run, expectations=expectations))
    with (docs / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = _append_run(docs / "runs.jsonl", run, page.relative_to(docs).as_posix())
        shown = [one for one in reversed(runs) if (docs / one["page"]).exists()]
        _replace(docs / "index.html", templates.get_template("index.html").render(runs=shown))
    return page


def _append_run(file: Path, run: GateRun, page: str) -> list[dict[str, Any]]:
    """Add a run to the file, and return the runs that the file keeps, newest last."""
    entry = {
        "at": f"{run.at:%Y-%m-%d %H:%M:%S}",
        "table": run.request.table,
        "partition": run.request.partition,
        "rows": run.rows,
        "failures": len(run.failures),
        "page": page,
    }
    before = file.read_text().splitlines() if file.exists() else []
    lines = [*before, json.dumps(entry)][-MAX_INDEXED_RUNS:]
    _replace(file, "\n".join(lines) + "\n")
    return [json.loads(line) for line in lines]


def _safe_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, because others may be reading it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
