"""`frazil package`: creates the archive with which a cluster's executors get frazil."""

from __future__ import annotations

from pathlib import Path

import click

from frazil.cli.options import json_option
from frazil.cli.output import Teller, echo
from frazil.spark.java import require_pyspark
from frazil.spark.package import STORAGES, installed_storages, make_package


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), default=Path("frazil-package.tar.gz"))
@click.option(
    "--storage",
    type=click.Choice(list(STORAGES)),
    multiple=True,
    help="An additional storage of tables, besides folders. Default: those whose packages are installed.",
)
@json_option
def package(target: Path, storage: tuple[str, ...], *, as_json: bool) -> None:
    """Pack this Python, with everything that executors need to stage records, for `resources.package`.

    The archive does not contain Airflow and PySpark, which the cluster has. Create the archive again after each upgrade
    of frazil: a writer refuses executors of another version.

    \b
    Example:
      frazil package frazil-package.tar.gz --storage s3
    """
    require_pyspark()
    storages = storage or installed_storages()
    make_package(target, storages=storages, say=lambda text: echo(text, err=True))
    where = ", ".join(("folders", *storages))
    size, teller = target.stat().st_size, Teller(as_json)
    teller.say(f"{target}: {size / 2**20:.0f} MiB, for tables in {where}")
    teller.end(package=target, bytes=size, storages=storages)
