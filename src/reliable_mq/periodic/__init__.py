"""Periodic messages: at each tick of a schedule, a function makes the payload of a message.

Receives the declarations of an application, and the time. Hands on stubs: each is committed
together with the row of its tick, so that a tick is fired exactly once, however many schedulers
run. It does not know how stubs are sent.
"""
