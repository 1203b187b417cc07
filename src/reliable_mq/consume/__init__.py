"""Station 9, consume: a handler runs for a delivery, and what becomes of the message is decided.

Receives deliveries and handlers. Hands on their effects, each committed with its row in the consume
log, and what the client is to tell the broker. Its way is: deliver, claim, run, settle.
"""
