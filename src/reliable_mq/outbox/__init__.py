"""Station 1, the outbox: a stub is written in the business transaction, the relay sends it.

Receives a business transaction and its messages. Writes a stub for each message. The stubs commit
with the transaction or not at all (P1). Hands committed stubs to a client. Knows no consumers.
"""
