"""Station 5: the request handlers, one module per family of requests.

Receives a command. Returns records to append, and a reply that may wait for them. Does not know
sockets and files. B1: a refused request changes nothing.
"""
