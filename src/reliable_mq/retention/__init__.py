"""Station 14, retention: rows that nobody needs any more are removed.

Receives ledgers, and how long each is kept. Hands on how many rows it removed.
"""
