"""Station 11, confirm: a stub is confirmed when all its consumer groups have consumed the message.

Receives rows of the consume log. Confirms stubs, and sends notices to other databases.
"""
