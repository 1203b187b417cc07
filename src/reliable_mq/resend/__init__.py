"""Station 12, resend: the scheduler sends again what is not confirmed in time (P2).

Receives stubs that are due. Hands on the same messages to a client, and says which have failed too
often.
"""
