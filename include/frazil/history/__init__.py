"""Stores a stream's history for display. Nothing else depends on it, and a failed write loses at most a minute."""
