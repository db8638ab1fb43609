"""Merges a batch's changes into a table, on executors: newest change by key, matching rows, new files, deletes."""
