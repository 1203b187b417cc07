"""Station 2: the client. It sends messages to brokers and gives deliveries to handlers.

It receives messages and subscriptions. It sends commands to brokers, and calls handlers with
deliveries. It must not know databases or what a handler does. All client logic is flows
(`flow.py`). `asyncio_engine.py` runs flows over connections; `asyncio_client_engine.py` adds what
verbs share. The application's interface is `asyncio_client.py` for coroutines and
`thread_client.py` for threads. C1: each opaque has one waiter. K1: a committed offset is never
beyond the lowest unfinished message.
"""
