"""Station 2: messages and subscriptions become commands for a broker, deliveries for a handler.

Receives messages to send and subscriptions; hands on commands to brokers and deliveries to
handlers; refuses to know databases and what a handler does. Everything is a flow (`flow.py`);
`asyncio_engine.py` drives flows over connections, `asyncio_client_engine.py` adds what verbs share;
the faces are `asyncio_client.py` for coroutines and `thread_client.py` for threads.
C1: one opaque, one waiter. K1: a committed offset is never beyond the lowest unfinished message.
"""
