"""What the tests of middleware share: one that notes what it sees, a broker on the test's loop."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from reliable_mq.client.observing.middleware import Delivery, Ending, Middleware, Sending
from reliable_mq.message import MessageQueue, ReceivedMessage, SendResult, SendStatus
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer

QUEUE = MessageQueue("orders", "broker-a", 2)


def stored(message_id: str = "A" * 32, *, trace_on: bool = True) -> SendResult:
    return SendResult(
        status=SendStatus.SEND_OK,
        message_id=message_id,
        offset_message_id="7F00000100002A9F" + "0" * 16,
        queue=QUEUE,
        queue_offset=7,
        region="eu",
        trace_on=trace_on,
    )


def received(
    body: bytes = b"{}", /, *, message_id: str = "A" * 32, **properties: str
) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=body,
        message_id=message_id,
        properties=properties,
        queue=QUEUE,
        queue_offset=7,
        store_time_ms=1_000,
    )


class Noted(Middleware):
    """Notes the hooks that were called, and what with."""

    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        self.name = name
        self.log: list[str] = [] if log is None else log
        self.sendings: list[Sending] = []
        self.deliveries: list[Delivery] = []
        self.endings: list[Ending] = []

    def before_send(self, sending: Sending) -> None:
        self.log.append(f"{self.name}before {sending.verb}")

    def after_send(self, sending: Sending) -> None:
        self.log.append(f"{self.name}after {sending.verb}")
        self.sendings.append(sending)

    def before_consume(self, delivery: Delivery) -> None:
        self.log.append(f"{self.name}before {delivery.verb}")

    def after_consume(self, delivery: Delivery) -> None:
        self.log.append(f"{self.name}after {delivery.verb}")
        self.deliveries.append(delivery)

    def after_end(self, ending: Ending) -> None:
        self.endings.append(ending)


@asynccontextmanager
async def broker_here(**settings: str) -> AsyncIterator[BrokerServer]:
    """Run the bundled broker on this loop."""
    with tempfile.TemporaryDirectory() as directory:
        options = BrokerOptions(
            store=Path(directory), port=0, name_server_port=0, properties=settings
        )
        server = BrokerServer(options)
        await server.start()
        try:
            yield server
        finally:
            await server.close()
