"""A writer on its host: its launcher, lock, heartbeat, log and exit records."""

from __future__ import annotations
