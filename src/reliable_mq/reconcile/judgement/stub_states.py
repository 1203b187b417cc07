"""States of a stub in the common schema of all ledgers (`events`). Pure; it needs no Arrow.

TOMBSTONE: a half message that was rolled back. ODD: a status that we never write.
"""

ALL = UNCONFIRMED, CONFIRMED, VOIDED, TOMBSTONE, ODD = range(5)
