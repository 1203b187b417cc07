"""Station 5: one file per family of requests.

Receives a command; hands on records to append and a reply that may wait for them; refuses to know
sockets and files. B1: a request that is refused changes nothing.
"""
