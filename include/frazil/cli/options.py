"""Options that several subcommands share."""

from __future__ import annotations

from pathlib import Path

import click

streams_option = click.option(
    "--streams",
    "streams_folder",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="FRAZIL_STREAMS",
    default=Path("include/streams"),
    show_default=True,
    help="The folder of declared streams (also: FRAZIL_STREAMS).",
)

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
