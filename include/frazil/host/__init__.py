"""A writer process on its host: launcher, lock, heartbeat, log and exit records."""

from __future__ import annotations
