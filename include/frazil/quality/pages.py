"""Writes the Data Docs, which need no network: one page per gate run, and an index. <docs>/index.html links to the
newest runs, <docs>/runs.jsonl has one line per run and is the source of the index, and
<docs>/<table>/<partition>-<time>.html is the page of one run.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from frazil.quality.gate import GateRequest, GateResult

MAX_INDEXED_RUNS = 1000
"""Maximum number of runs in the index. Pages of older runs are kept."""


def page_path(request: GateRequest, at: datetime) -> Path:
    """Return the path of the page about a run at the time `at`."""
    file = f"{_to_safe_name(request.partition)}-{at:%Y%m%dT%H%M%S%f}.html"
    return request.docs / _to_safe_name(request.table) / file


def write_pages(request: GateRequest, result: GateResult, at: datetime, *, expectations: str) -> None:
    """Write the page of this run and update the index. `expectations` is HTML whose values are escaped."""
    docs, page = request.docs, Path(result.docs)
    page.parent.mkdir(parents=True, exist_ok=True)
    templates = Environment(loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True)
    run = templates.get_template("run.html").render(request=request, result=result, at=at, expectations=expectations)
    page.write_text(run)
    entry = {
        "at": f"{at:%Y-%m-%d %H:%M:%S}",
        "table": request.table,
        "partition": request.partition,
        "rows": result.rows,
        "failures": len(result.failures),
        "page": page.relative_to(docs).as_posix(),
    }
    with (docs / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = [one for one in reversed(_append_run(docs / "runs.jsonl", entry)) if (docs / one["page"]).exists()]
        _replace_file(docs / "index.html", templates.get_template("index.html").render(runs=runs))


def _append_run(file: Path, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Add a run to the file, keep the newest `MAX_INDEXED_RUNS` runs, and return these, newest last."""
    before = file.read_text().splitlines() if file.exists() else []
    lines = [*before, json.dumps(entry)][-MAX_INDEXED_RUNS:]
    _replace_file(file, "\n".join(lines) + "\n")
    return [json.loads(line) for line in lines]


def _to_safe_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")


def _replace_file(path: Path, text: str) -> None:
    """Replace a file atomically, because other processes may be reading it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
