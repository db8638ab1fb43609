"""The jars that a Spark session needs to open certain catalogs. Only these are loaded: AWS's jars are very large."""

from __future__ import annotations

from pathlib import Path

from frazil.spark import jars
from frazil.table.catalogs import spark_jar_sets


def catalog_jars(*catalogs: str | None) -> list[Path]:
    """Return the jars for these catalogs; missing jars are first downloaded into the cache. None is the default
    catalog.

    Raises EnvironmentUnusable (no network, no Java), and SpecError for a catalog that is not configured.
    """
    sets = dict.fromkeys(name for catalog in catalogs for name in spark_jar_sets(catalog))
    return [jar for name in sets for jar in jars.ensure(name)]
