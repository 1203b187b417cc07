"""Station 12, resend: the scheduler sends messages again that are not confirmed in time (P2).

Receives stubs that are due. Passes the same messages to a client, and escalates those that used up
their sends.
"""
