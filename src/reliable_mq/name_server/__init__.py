"""Station 4: which broker has which topic.

Receives registrations; hands on routes; refuses to know the messages.
"""
