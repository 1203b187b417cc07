"""Station 4, the name server: which broker has which topic.

Receives registrations of brokers. Returns routes. Does not know messages.
"""
