"""Station 2: the client. It sends messages to brokers and gives deliveries to handlers.

It receives messages and subscriptions. It sends commands to brokers, and calls handlers with
deliveries. It must not know databases or what a handler does.
All client logic is flows (`flow.py`). `asyncio_engine.py` runs flows over connections, and
`asyncio_client_engine.py` adds the common parts of all verbs. The application uses the verbs of
`asyncio_client.py` (coroutines) and `thread_client.py` (threads).
C1: each opaque has one waiter. K1: committed offsets are never beyond an unfinished message.
"""
