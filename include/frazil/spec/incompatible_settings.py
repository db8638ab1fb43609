"""Lists the settings of a stream that exclude each other, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from frazil.spec.values import Problem

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec


class Refusal(NamedTuple):
    feature: str
    setting: str
    """Dotted key of the other setting."""
    values: tuple[str, ...]
    explanation: str
    """End of the message: the reason, and what to do."""


_FEATURES: Mapping[str, Callable[[StreamSpec], bool]] = {
    "route": lambda spec: spec.route is not None,
    "mode: upsert": lambda spec: spec.mode == "upsert",
    "dedupe": lambda spec: spec.dedupe is not None,
    "transform": lambda spec: spec.transform is not None,
    "application": lambda spec: spec.application is not None,
}
_SETTINGS: Mapping[str, Callable[[StreamSpec], str]] = {
    "commit.align": lambda spec: spec.commit.align,
    "resources.deploy-mode": lambda spec: "cluster" if spec.resources.driver_in_cluster else "",
    "evolution": lambda spec: spec.evolution.mode,
    "distribution": lambda spec: spec.distribution,
    "source.format.lines": lambda spec: str(spec.has_lines and not spec.may_unnest).lower(),
    "transform": lambda spec: "unnest" if spec.may_unnest else "",
    "coordinates": lambda spec: str(spec.coordinates).lower(),
    "mode": lambda spec: spec.mode,
}
_SEVERAL_ROWS = "makes several rows from a record, and their order is undefined; leave it out with "
_SEVERAL_TABLES = (
    "could send rows of one record to several tables, but audits and backfills count a table's records by offset; "
    "make one row from each record"
)
REFUSALS = (
    Refusal(
        "route",
        "commit.align",
        ("watermark",),
        "shows a window with the table's next commit, but a quiet table of the route may have no further commit. "
        "Leave it out, and read the snapshots that signals name (route.complete)",
    ),
    Refusal(
        "application",
        "resources.deploy-mode",
        ("cluster",),
        "cannot be used in a shared application. Airflow restarts and observes its streams through files of the "
        "supervisor's host, which a driver in the cluster does not have. Leave one of them out",
    ),
    Refusal(
        "route",
        "distribution",
        ("hash", "auto"),
        "divides rows by the sizes of the default table's recent batches, so one task would write a large routed "
        "table; leave it out",
    ),
    Refusal("route", "source.format.lines", ("true",), _SEVERAL_TABLES),
    Refusal("route", "transform", ("unnest",), _SEVERAL_TABLES),
    Refusal(
        "transform",
        "evolution",
        ("additive", "full"),
        "is not possible with a transform, which computes all columns; leave it out, and declare new columns",
    ),
    Refusal(
        "mode: upsert",
        "commit.align",
        ("watermark",),
        "keeps rows of open windows on a branch, where an upsert cannot change them; leave it out",
    ),
    Refusal("mode: upsert", "source.format.lines", ("true",), f"{_SEVERAL_ROWS}mode: upsert"),
    Refusal("mode: upsert", "transform", ("unnest",), f"{_SEVERAL_ROWS}mode: upsert"),
    Refusal(
        "mode: upsert",
        "distribution",
        ("hash", "auto"),
        "has no effect on an upsert, because each merge task has complete partitions; leave it out",
    ),
    Refusal(
        "dedupe", "mode", ("upsert",), "already has one row per key, and dedupe needs mode: append; leave dedupe out"
    ),
    Refusal(
        "dedupe",
        "commit.align",
        ("watermark",),
        "keeps rows of open windows on a branch, which dedupe does not search; leave one of them out",
    ),
    Refusal("dedupe", "source.format.lines", ("true",), f"{_SEVERAL_ROWS}dedupe"),
    Refusal("dedupe", "transform", ("unnest",), f"{_SEVERAL_ROWS}dedupe"),
    Refusal(
        "dedupe",
        "coordinates",
        ("false",),
        "removes the columns that show which of two rows came first; keep the coordinates, or leave dedupe out",
    ),
    Refusal(
        "dedupe", "evolution", ("full",), "may make a column of the key optional; use additive, or leave dedupe out"
    ),
)


def find_problems(spec: StreamSpec) -> Iterator[Problem]:
    for feature, setting, values, explanation in REFUSALS:
        if _FEATURES[feature](spec) and (declared := _SETTINGS[setting](spec)) in values:
            yield Problem(setting, declared, explanation)
    if (field := spec.sinks.field) and spec.sinks.mode.replaces_rows and field not in spec.key:
        text = (
            "is not in the key, so a change of this column would leave the old row in the former table. Add it to the "
            "key. When its value changes, send a delete of the old row (change capture: replica identity full)"
        )
        yield Problem("route.name", field, text)
