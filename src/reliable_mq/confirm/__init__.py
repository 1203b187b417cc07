"""Station 11, confirm: a stub is confirmed when all its consumer groups have consumed the message.

Receives rows of the consume log. Hands on confirmed stubs, and notices to databases elsewhere.
"""
