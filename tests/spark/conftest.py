"""One Spark session for the tests of this folder, on the embedded catalog of a home that they share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.dev import jars
from frazil.table.catalogs import spark_properties


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A FRAZIL_HOME for the whole session: a Spark catalog is opened once and kept."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for variable in [name for name in os.environ if name.upper().startswith("PYICEBERG")]:
            patch.delenv(variable)
        patch.setenv("HOME", str(home))
        patch.setenv("FRAZIL_HOME", str(home / "frazil"))
        yield home / "frazil"


@pytest.fixture(scope="session")
def spark(shared_home: Path) -> Iterator[Any]:
    """A local session with Iceberg's runtime and the embedded catalog, as `frazil` would configure it."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - tests that need no Spark start without it

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(str(jar) for jar in jars.ensure("spark")))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.warehouse.dir", str(shared_home / "spark-warehouse"))
    )
    for key, value in spark_properties(None).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
