"""Station 10, idempotency: the effect of a message happens once per consumer group (P4).

Receives a delivery. Returns one of: run the handler, acknowledge without running, later. Redis
holds leases and makes claims cheap. The consume log, committed with the effect, decides. Does not
know what the handler does.
"""
