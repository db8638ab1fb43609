"""Processes that do one thing at once, forked from one that has imported what they need: each import is paid once."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext


def several_processes() -> ForkServerContext:
    """A context for pools. Its processes have the environment of the first that was asked for, not of the test."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pyiceberg.catalog.sql", "frazil.table.tables", "frazil.table.catalogs"])
    return context
