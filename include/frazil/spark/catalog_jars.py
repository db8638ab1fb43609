"""Finds the jars that a Spark session needs to open its catalogs."""

from __future__ import annotations

from pathlib import Path

from frazil.spark import jars
from frazil.table.catalogs import spark_jar_sets


def ensure_catalog_jars(*catalogs: str | None) -> list[Path]:
    """Return the paths of the jars for these catalogs, as `ensure_jars` does; None means the default catalog."""
    sets = dict.fromkeys(name for catalog in catalogs for name in spark_jar_sets(catalog))
    return [jar for name in sets for jar in jars.ensure_jars(name)]
