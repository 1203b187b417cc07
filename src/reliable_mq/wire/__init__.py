"""Station 3, wire formats: decode the bytes of a connection or a file to values, and encode them.

Receives bytes. Returns frames, commands and records. Does not know the peer or the purpose.
W1: decode after encode is the identity. W2: any split of the bytes gives the same frames.
"""
