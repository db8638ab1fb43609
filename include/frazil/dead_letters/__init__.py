"""Inspects, replays and discards dead letters."""
