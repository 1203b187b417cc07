"""Station 10, idempotency: the effect of a message happens once per consumer group (P4).

Receives a delivery. Hands on one of: run, acknowledge without running, later. Redis holds leases
and makes it cheap; the consume log, committed with the effect, decides. Refuses to know what the
handler does.
"""
