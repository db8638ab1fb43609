"""A stream's history for display: numbers per minute, and events. It is stored next to the table and limited in size.

Nothing else depends on the history. A failed write, or two concurrent writes, lose at most a minute of its numbers.
"""
