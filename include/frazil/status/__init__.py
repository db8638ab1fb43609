"""Where a stream stands, for the command line and for pages."""

from __future__ import annotations
