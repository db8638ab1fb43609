"""Stores a stream's history for display. Nothing else depends on it. A failed write loses at most one minute."""
