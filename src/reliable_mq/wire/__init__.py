"""Station 3: bytes of a connection or of a file become values, and back.

Receives bytes; hands on frames, commands and records; refuses to know who sent them or what they
are for. W1: decode after encode is the identity. W2: any split of the bytes gives the same frames.
"""
