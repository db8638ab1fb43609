"""Runs the `frazil` command as `python -m frazil`."""

from __future__ import annotations

from frazil.cli.main import main

if __name__ == "__main__":
    main()
