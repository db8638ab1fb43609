"""Finds the jars that a Spark session needs to open its catalogs. Other jars are not loaded, because AWS's are very
large.
"""

from __future__ import annotations

from pathlib import Path

from frazil.spark import jars
from frazil.table.catalogs import spark_jar_sets


def ensure_catalog_jars(*catalogs: str | None) -> list[Path]:
    """Return the paths of the jars for these catalogs. Downloads missing jars into the cache. None means the default
    catalog.

    Raises EnvironmentUnusable if Java or the network is missing, and SpecError for a catalog that is not configured.
    """
    sets = dict.fromkeys(name for catalog in catalogs for name in spark_jar_sets(catalog))
    return [jar for name in sets for jar in jars.ensure_jars(name)]
