"""Station 14, retention: remove rows that are no longer needed.

Receives ledgers, and how long each is kept. Returns how many rows it removed.
"""
