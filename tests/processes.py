"""Starts several processes for the same work, forked from one that has imported what they need."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext


def several_processes() -> ForkServerContext:
    """Return a context for pools. All its processes have the environment of the first one, not of the current test."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pyiceberg.catalog.sql", "frazil.table.tables", "frazil.table.catalogs"])
    return context
