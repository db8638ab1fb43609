"""A stream's history, for people: numbers per minute, and events, stored next to its table, limited in size.

Nothing depends on the history. A lost write, or two concurrent writes, cost a minute of a curve.
"""
