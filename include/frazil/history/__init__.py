"""A stream's history for display: numbers per minute, and events. It is stored next to the table and limited in size.

No other data depends on the history. A lost write, or two concurrent writes, lose at most a minute of its numbers.
"""
