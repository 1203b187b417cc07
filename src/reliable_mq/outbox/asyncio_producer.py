"""`mq.producer`: sends without the outbox. If the process dies, unsent messages are lost."""

import asyncio
import os
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar, Unpack

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.configuration.setting_choices import Strictness
from reliable_mq.errors import ReliableMQError, UsageError
from reliable_mq.message import CONTENT_TYPE, Message, SendResult
from reliable_mq.message_checks import check_message, size_of
from reliable_mq.outbox.asyncio_listeners import Listeners, TransactionResult
from reliable_mq.outbox.cloud_events import Envelope
from reliable_mq.outbox.composing import check_room, contents_of, fresh_message_id, wrapped
from reliable_mq.outbox.delay import by_level, check_times, timed_by_delay
from reliable_mq.outbox.message_options import ContentOptions, MessageOptions
from reliable_mq.outbox.thread_link import ProcessLink
from reliable_mq.topic import Topic, name_of

T = TypeVar("T")


class SentOutsideTransaction(UserWarning):
    """A send without a stub to a managed topic: the message is neither resent nor reconciled."""


class Producer:
    """Sends messages at once, without a stub. Made by `ReliableMQ.producer`.

    Args:
        link: the application's connections.
        is_managed: whether the messages of a topic should have stubs.
        policy: what happens on a send to such a topic.
        listeners: the application's transaction listeners.
        envelopes: the envelopes of topics that have one.
    """

    def __init__(
        self,
        link: ProcessLink,
        is_managed: Callable[[str], bool],
        policy: Strictness,
        listeners: Listeners,
        envelopes: Mapping[str, Envelope] = MappingProxyType({}),
    ) -> None:
        self._envelopes = envelopes
        self._link = link
        self._is_managed = is_managed
        self._policy = policy
        self._listeners = listeners

    def send(
        self, topic: str | Topic[T], payload: T, **options: Unpack[MessageOptions]
    ) -> SendResult:
        """Send `payload` and return where it is stored. Arguments: see `Transaction.send`.

        The broker's clock counts a delay, from the arrival of the message on. A time beyond the
        broker's range (`timerMaxDelaySec`, 3 days) needs a stub that waits: `mq.transaction`.

        Raises:
            MessageRefused: the message cannot be sent.
            Refused: the time is too far ahead for the broker.
            UsageError: both times are given, or one cannot be read. The topic is managed and the
                policy is "raise".
            Unavailable: no broker could be reached; the message may still have been stored.
        """
        name = name_of(topic)
        self._check_policy(name)
        message = self._message(name, payload, **options)
        return self._link.loop_thread.run(_send(self._link.client, message))

    async def send_async(
        self, topic: str | Topic[T], payload: T, **options: Unpack[MessageOptions]
    ) -> SendResult:
        """Send from any event loop; see `send`."""
        name = name_of(topic)
        self._check_policy(name)
        message = self._message(name, payload, **options)
        client = await asyncio.to_thread(lambda: self._link.client)
        return await asyncio.wrap_future(self._link.loop_thread.submit(_send(client, message)))

    def send_in_transaction(
        self,
        topic: str | Topic[T],
        payload: T,
        argument: Any = None,
        **options: Unpack[MessageOptions],
    ) -> TransactionResult:
        """Send a half message, run its listener's `execute`, then commit it or roll it back.

        Args:
            topic: the topic; it has a `@mq.transaction_listener`.
            payload: see `Transaction.send`.
            argument: passed to `execute` with the message. Default None.
            **options: see `Transaction.send`; a delay is not allowed.

        An error of `execute` is raised here. The broker later asks for the end of the transaction:
        `check` is called in this or another process of the application.

        Raises:
            MessageRefused: the message cannot be sent, or is delayed.
            UsageError: the topic has no listener.
            RemoteError, Unavailable: no broker stored the half; `execute` did not run.
        """
        return self._listeners.send(self._message(name_of(topic), payload, **options), argument)

    async def send_in_transaction_async(
        self,
        topic: str | Topic[T],
        payload: T,
        argument: Any = None,
        **options: Unpack[MessageOptions],
    ) -> TransactionResult:
        """Send a half message from any event loop; see `send_in_transaction`."""
        message = self._message(name_of(topic), payload, **options)
        return await self._listeners.send_async(message, argument)

    def _message(
        self,
        topic: str,
        payload: Any,
        *,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        **options: Unpack[ContentOptions],
    ) -> Message:
        check_times(delay, deliver_at)
        contents = contents_of(payload, **options)
        now = time.time()
        message_id = contents.message_id or fresh_message_id(now, os.urandom)
        if topic in self._envelopes:
            contents = wrapped(contents, self._envelopes[topic], topic, message_id, now)
        message = Message(
            topic=topic,
            body=contents.body,
            tag=contents.tag,
            keys=(contents.key,) if contents.key else (),
            message_id=message_id,
            ordering_key=contents.ordering_key,
            delay=delay if delay is not None and delay > timedelta() else None,
            deliver_at=deliver_at,
            properties={**contents.properties, CONTENT_TYPE: contents.content_type},
        )
        if contents.properties:
            check_message(message, size_of(message))  # a client may accept larger bodies
            check_room(message)
        return message

    def _check_policy(self, topic: str) -> None:
        if self._policy == "allow" or not self._is_managed(topic):
            return
        text = (
            f"topic {topic} is managed, but this message has no stub: use mq.transaction(), "
            "or set send_outside_transaction='allow'"
        )
        if self._policy == "raise":
            raise UsageError(text)
        warnings.warn(text, SentOutsideTransaction, stacklevel=3)


async def _send(client: AsyncClient, message: Message) -> SendResult:
    """Send a message. If the broker has no timers, use the next longer delay level."""
    try:
        return await client.send(message)
    except ReliableMQError as error:
        levelled = by_level(timed_by_delay(message, time.time()), error)
        if levelled is None:
            raise
        return await client.send(levelled)
