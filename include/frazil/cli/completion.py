"""`frazil completion`: prints a script that lets a shell complete commands, options, streams and tables."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL: bash, zsh or fish.

    Source the script when the shell starts. It completes commands, options, and the names of streams and tables that
    the folder of streams declares.

    \b
    Example:
      echo 'eval "$(frazil completion bash)"' >> ~/.bashrc
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "frazil", "_FRAZIL_COMPLETE").source())
