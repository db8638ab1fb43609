"""A writer on its host: who launches it, and the lock, heartbeat, log and exit records that it leaves there."""

from __future__ import annotations
