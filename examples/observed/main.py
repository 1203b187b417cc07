"""Middleware: what an application sends and what its handlers do, seen by hooks.

One middleware of our own puts the customer's region into every message and says how handlers end;
`PrometheusMiddleware` counts and times; `LoggingMiddleware` writes a line for each message.
"""

import logging
from threading import Event

import msgspec
from prometheus_client import CollectorRegistry

from reliable_mq import (
    Delivery,
    LoggingMiddleware,
    Middleware,
    PrometheusMiddleware,
    ReliableMQ,
    Retry,
    Sending,
)

registry = CollectorRegistry()
logging.getLogger("reliable_mq.messages").addHandler(logging.StreamHandler())


class Region(Middleware):
    """Sends the region along, and prints what became of messages."""

    def before_send(self, sending: Sending) -> None:
        """Put a property into each message."""
        for at, message in enumerate(sending.messages):
            properties = {**message.properties, "region": "eu"}
            sending.messages[at] = msgspec.structs.replace(message, properties=properties)

    def after_consume(self, delivery: Delivery) -> None:
        """Say how the handler ended."""
        (message,) = delivery.messages
        print(f"{delivery.group} had {message.topic} of {message.properties['region']}:", end=" ")
        print(repr(delivery.outcomes[0]) if delivery.outcomes else delivery.error)


mq = ReliableMQ(
    "shop",
    broker="embedded:broker",
    database="sqlite:///shop.db",
    middleware=[Region(), LoggingMiddleware(), PrometheusMiddleware(registry)],
)
paid = Event()
tries: list[int] = []


@mq.consumer("orders", group="payments")
def take_payment(order: dict[str, int]) -> None:
    """Succeed the second time."""
    tries.append(order["id"])
    if len(tries) == 1:
        raise Retry(after=0.1)
    paid.set()


mq.create_tables()
with mq:
    with mq.transaction() as tx:
        tx.send("orders", {"id": 1}, ordering_key="ada")
    paid.wait(timeout=60)

labels = {"group": "payments", "topic": "orders"}
for outcome in ("later", "consumed"):
    name = "reliable_mq_handled_messages_total"
    print(name, outcome, registry.get_sample_value(name, {**labels, "outcome": outcome}))
