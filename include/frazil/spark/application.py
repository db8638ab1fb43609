"""What applications for spark-submit share: their log, and a session with catalogs that no command line ever held."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import SparkSession

from frazil.spark.java import java_needed
from frazil.table.catalogs import spark_properties


def log_to_stderr() -> None:
    """Sentences of ours, and warnings of others."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("py4j", "pyiceberg", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def start_session(
    app_name: str, *catalogs: str | None, properties: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """A session with the catalogs, which neither a command line nor Airflow's database ever held.

    The master, all resources and Iceberg's runtime are spark-submit's; without it, `properties` say them.
    """
    builder = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC")
    for key, value in properties.items():
        builder = builder.config(key, value)
    for catalog in catalogs:
        for key, value in spark_properties(catalog).items():
            builder = builder.config(key, value)
    with java_needed():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session
