"""Computes watermarks, decides which event-time windows are complete, and counts their rows."""
