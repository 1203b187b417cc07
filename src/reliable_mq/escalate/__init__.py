"""Station 13, escalate: people learn of what no program can finish, and their decisions are done.

Receives stuck stubs and dead messages. Hands on alerts, timelines, retries and voided stubs.
"""
