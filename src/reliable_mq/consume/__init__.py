"""Station 9, consume: a handler runs for a delivery, and the end of the message is decided.

Receives deliveries and handlers. Commits each effect with its row in the consume log, and returns
what the client reports to the broker. The steps are: deliver, claim, run, settle.
"""
