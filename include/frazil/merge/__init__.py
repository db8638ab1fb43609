"""Merges a batch's changes into a table, on executors: finds each key's newest change and row, and writes new files and
deletes.
"""
