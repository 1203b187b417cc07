"""Station 1, the outbox: a stub is written in the business transaction, the relay sends it.

Receives a business transaction and its messages. Hands on stubs that were committed with the
transaction or not at all (P1), and the committed ones to a client. Refuses to know who consumes.
"""
