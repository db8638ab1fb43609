"""A writer process on its host: launcher, lock, heartbeat, log and exit records."""
