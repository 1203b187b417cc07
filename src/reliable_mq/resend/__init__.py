"""Station 10, resend: what the relay could not settle is sent again, or a person is told (P2).

Receives stubs that are due. Hands on the same message again, or an escalation.
"""
