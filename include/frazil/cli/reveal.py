"""`frazil reveal`: decrypts tokens that a stream made from sensitive fields."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from frazil.cli.options import json_option, stream_argument, streams_option
from frazil.cli.output import echo, echo_json
from frazil.errors import SpecError
from frazil.ingest.sealing import Secret
from frazil.spec.load import find_stream


@click.command()
@stream_argument()
@click.argument("tokens", nargs=-1)
@streams_option
@json_option
def reveal(stream: str, tokens: tuple[str, ...], streams_folder: Path, *, as_json: bool) -> None:
    """Print the texts of TOKENS that STREAM made from its sensitive fields (`tokenize`), one per line.

    Without TOKENS, reads them from standard input, one per line. The environment must have the secret that the stream's
    `sensitive.secret` refers to.

    \b
    Example:
      frazil reveal payments VSy9TqPq0Hd1mEEZ1IEAlJMEsz8
    """
    declared = find_stream(streams_folder, stream).sensitive
    if declared is None or declared.secret is None:
        raise SpecError(f"stream {stream!r} declares no sensitive.secret, so it made no tokens")
    secret = Secret.of(declared.secret, os.environ)
    texts = {}
    for token in tokens or (line.strip() for line in sys.stdin):
        try:
            texts[token] = secret.revealed(token)
        except ValueError as error:
            raise click.ClickException(
                f"{token!r} {error}: it was made with another secret, or is incomplete"
            ) from None
        if not as_json:
            echo(texts[token])
    if as_json:
        echo_json({"stream": stream, "texts": texts})
