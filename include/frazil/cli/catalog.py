"""`frazil catalog`: prints the configuration with which a query engine reads the tables."""

from __future__ import annotations

from typing import get_args

import click

from frazil.cli.options import json_option
from frazil.cli.output import echo, echo_json
from frazil.spark.jars import ROOTS
from frazil.table.catalogs import catalog_config
from frazil.table.readers import Reader, configuration
from frazil.table.spark_catalog import jar_sets


@click.command()
@click.argument("name", required=False)
@click.option("--for", "reader", type=click.Choice(get_args(Reader)), required=True, help="The engine.")
@json_option
def catalog(name: str | None, reader: Reader, *, as_json: bool) -> None:
    """Print how an engine reads the tables of catalog NAME.

    NAME defaults to the default catalog. Spark, DuckDB and PyIceberg get Python to paste, Trino a properties file.
    Secrets are not printed: references to environment variables replace them.

    \b
    Example:
      frazil catalog --for spark
      frazil catalog lake --for trino > etc/catalog/lake.properties
    """
    config = catalog_config(name)
    packages = [each for name in jar_sets(config.properties) for each in ROOTS[name].coordinates]
    text = configuration(reader, config.name, config.properties, packages)
    echo_json({"catalog": config.name, "for": reader, "configuration": text}) if as_json else echo(text)
