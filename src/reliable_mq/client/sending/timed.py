"""Timed messages: checks that a broker supports timers, and recalls messages.

It receives messages and recall handles. It returns properties and requests. It refuses brokers
older than 5.0: they have no timers and would deliver the message at once.
Source: Apache RocketMQ `HookUtils`, `DefaultMQProducerImpl.recallMessage`, `MQVersion`.
"""

import msgspec

from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.flow import Flow, call, succeeded
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    NoTimers,
    ProtocolError,
    Unavailable,
    UsageError,
)
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request
from reliable_mq.wire.headers import RecallMessageHeader
from reliable_mq.wire.recall_handle import decode_recall_handle

TIMERS_SINCE = 413
"""MQVersion.V5_0_0: earlier brokers have no timers."""

_HELLO = msgspec.json.encode(
    {
        "clientID": "reliable_mq",
        "consumerDataSet": [],
        "heartbeatFingerprint": 0,
        "producerDataSet": [],
        "withoutSub": False,
    }
)


BROKERS_MAX = 1_000
"""Versions of this many brokers are remembered. Above that, all are asked again."""


class TimerBrokers:
    """The brokers that are known to have timers. Each is asked once, by an empty heartbeat.

    Args:
        timeout: seconds to wait for the answer.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._versions: dict[str, int] = {}

    def check(self, address: str) -> Flow[None]:
        """Check that the broker at `address` supports timed messages.

        Raises:
            NoTimers: when it would deliver the message at once.
            Unavailable: when it does not answer.
        """
        version = self._versions.get(address)
        if version is None:
            if len(self._versions) >= BROKERS_MAX:
                self._versions.clear()
            hello = request(RequestCode.HEART_BEAT, None, _HELLO)
            version = (yield from call(address, hello, self._timeout)).version
            self._versions[address] = version
        if version < TIMERS_SINCE:
            del self._versions[address]  # the next send may find a newer broker there
            raise NoTimers(
                f"the broker at {address} is older than 5.0 and has no timers: use delay_level"
            )


def recall(routes: RouteCache, settings: ClientSettings, handle: str, timeout: float) -> Flow[str]:
    """Cancel a timed message before its time, and return its message id.

    Args:
        routes: where its broker is.
        settings: the producer group.
        handle: `recall_handle` of the result of its send.
        timeout: seconds to wait for the broker.

    Raises:
        UsageError: when `handle` is not a recall handle.
        NotPermitted: when the broker allows no recall (`recallMessageEnable=false`).
        Refused: when it is too late.
        Unavailable: when the broker does not answer. The recall may have worked nevertheless.
    """
    named = decode_recall_handle(handle) if isinstance(handle, str) else None
    if named is None:
        raise UsageError(f"{handle!r} is not a recall handle: only timed messages have one")
    broker = routes.broker(named.broker)
    if broker is None:
        broker = (yield from routes.of(named.topic)).brokers.get(named.broker)
    if broker is None or broker.master is None:
        raise Unavailable(f"no master of broker {named.broker} is known")
    header = RecallMessageHeader(
        topic=named.topic, recall_handle=handle, producer_group=settings.producer_group
    )
    command = request(RequestCode.RECALL_MESSAGE, header.to_ext())
    reply = succeeded((yield from call(broker.master, command, timeout)))
    message_id = reply.ext_fields.get("msgId")
    if not message_id:
        raise ProtocolError("the reply to a recall has no message id")
    return message_id
