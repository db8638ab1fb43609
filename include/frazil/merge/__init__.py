"""Merges a batch's changes into a table, on executors."""
