"""Stores a stream's history for display only. A failed write loses at most one minute."""
