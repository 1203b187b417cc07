"""The decisions of the bundled broker: commands in, turns out.

Receives commands and the time. Returns batches to append, and replies that wait until the batches
are durable. Does not know sockets, threads or the clock.
"""
