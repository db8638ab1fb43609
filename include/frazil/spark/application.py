"""Starts an application's Spark session. Catalog secrets are set in the session, never on a command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pyspark import SparkConf
from pyspark.sql import SparkSession

from frazil.spark.java import jvm_start, launch_jvm
from frazil.table.catalogs import spark_properties


def start_session(
    app_name: str,
    *catalogs: str | None,
    properties: Mapping[str, str] = MappingProxyType({}),
    output: Path | None = None,
) -> SparkSession:
    """Start a session with these catalogs (None: the default), configured by spark-submit or `properties`.

    If `output` is given, what the JVM prints is appended to this file.
    """
    catalog_properties = [item for catalog in catalogs for item in spark_properties(catalog).items()]
    settings = {"spark.app.name": app_name, "spark.sql.session.timeZone": "UTC"}
    conf = SparkConf().setAll([*(settings | dict(properties)).items()])
    with jvm_start():
        if output is not None:
            launch_jvm(conf, output)
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    # The command line of a JVM that the builder starts has all of the builder's properties.
    for key, value in catalog_properties:
        session.conf.set(key, value)
    session.sparkContext.setLogLevel("WARN")
    return session
