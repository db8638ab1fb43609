"""`python -m frazil` is the `frazil` command."""

from __future__ import annotations

from frazil.cli.main import main

if __name__ == "__main__":
    main()
