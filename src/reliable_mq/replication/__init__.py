"""Replication: how the log of a master reaches its slaves.

Receives bytes of a connection, and the ends of logs. Returns frames, and records that are whole and
checked. Does not know sockets, threads or the clock.
"""
