"""Reliable messaging for Python: broker, outbox, idempotency, resend and reconciliation.

Read the packages in the order in which a message passes them, see ARCHITECTURE.md:

     1  outbox                a business transaction commits a stub, the relay sends it
     2  client                messages and subscriptions become commands for a broker
     3  wire                  commands and records become bytes, and back
     4  name_server           maps topics to brokers
     5  broker_core.requests  a command becomes a record, and a reply that waits for it
     6  broker_core.store     a record is stored
     7  broker_core.dispatch  a durable record becomes visible
     8  broker_core.delivery  a record is delivered when it is due
     9  consume               a delivery runs its handler in a transaction
    10  idempotency           a delivery has its effect once
    11  confirm               a consumed message confirms its stub
    12  resend                an unconfirmed stub is sent again
    13  escalate              people are informed, and act
    14  retention             what is old and settled is removed
    15  reconcile             three ledgers, one verdict per message and consumer group

This module has the names that an application needs. Each is imported at its first use, because a
broker must not wait for a database library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reliable_mq.app.application import ReliableMQ
    from reliable_mq.client.administering.groups import GroupChange
    from reliable_mq.client.administering.topic_settings import TopicChange
    from reliable_mq.client.asyncio_client import AsyncClient
    from reliable_mq.client.connecting.security import TLS, Credentials
    from reliable_mq.client.consuming.asyncio_pull_consumer import AsyncPullConsumer
    from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer
    from reliable_mq.client.consuming.subscription import Sql, Subscription
    from reliable_mq.client.consuming.thread_pull_consumer import PullConsumer
    from reliable_mq.client.consuming.thread_simple_consumer import SimpleConsumer
    from reliable_mq.client.observing.asyncio_message_trace import MessageTraceMiddleware
    from reliable_mq.client.observing.logged import LoggingMiddleware
    from reliable_mq.client.observing.middleware import (
        Delivery,
        Ending,
        Middleware,
        Recall,
        Sending,
        Skip,
    )
    from reliable_mq.client.observing.open_telemetry import OpenTelemetryMiddleware
    from reliable_mq.client.observing.prometheus import PrometheusMiddleware
    from reliable_mq.client.settings import ClientSettings
    from reliable_mq.client.thread_client import Client
    from reliable_mq.idempotency.keyed_function import IdempotentCall, injected
    from reliable_mq.message import Decision, Message, MessageQueue, ReceivedMessage, SendResult
    from reliable_mq.outbox.async_transaction import AsyncTransaction
    from reliable_mq.outbox.cloud_events import CloudEvent
    from reliable_mq.outbox.schema import schema
    from reliable_mq.outbox.sql_transaction import Transaction
    from reliable_mq.outcomes import Consumed, Reject, Retry
    from reliable_mq.outcomes import Dead as Dead  # old words, see `__getattr__`
    from reliable_mq.outcomes import Later as Later
    from reliable_mq.periodic.declaration import PeriodicState, Tick
    from reliable_mq.topic import Topic

_HOMES = {
    "AsyncClient": "reliable_mq.client.asyncio_client",
    "AsyncPullConsumer": "reliable_mq.client.consuming.asyncio_pull_consumer",
    "AsyncSimpleConsumer": "reliable_mq.client.consuming.asyncio_simple_consumer",
    "AsyncTransaction": "reliable_mq.outbox.async_transaction",
    "Client": "reliable_mq.client.thread_client",
    "ClientSettings": "reliable_mq.client.settings",
    "CloudEvent": "reliable_mq.outbox.cloud_events",
    "Consumed": "reliable_mq.outcomes",
    "Credentials": "reliable_mq.client.connecting.security",
    "Decision": "reliable_mq.message",
    "Delivery": "reliable_mq.client.observing.middleware",
    "Ending": "reliable_mq.client.observing.middleware",
    "GroupChange": "reliable_mq.client.administering.groups",
    "IdempotentCall": "reliable_mq.idempotency.keyed_function",
    "LoggingMiddleware": "reliable_mq.client.observing.logged",
    "Message": "reliable_mq.message",
    "MessageQueue": "reliable_mq.message",
    "MessageTraceMiddleware": "reliable_mq.client.observing.asyncio_message_trace",
    "Middleware": "reliable_mq.client.observing.middleware",
    "OpenTelemetryMiddleware": "reliable_mq.client.observing.open_telemetry",
    "PeriodicState": "reliable_mq.periodic.declaration",
    "PrometheusMiddleware": "reliable_mq.client.observing.prometheus",
    "PullConsumer": "reliable_mq.client.consuming.thread_pull_consumer",
    "Recall": "reliable_mq.client.observing.middleware",
    "ReceivedMessage": "reliable_mq.message",
    "Reject": "reliable_mq.outcomes",
    "ReliableMQ": "reliable_mq.app.application",
    "Retry": "reliable_mq.outcomes",
    "SendResult": "reliable_mq.message",
    "Sending": "reliable_mq.client.observing.middleware",
    "SimpleConsumer": "reliable_mq.client.consuming.thread_simple_consumer",
    "Skip": "reliable_mq.client.observing.middleware",
    "Sql": "reliable_mq.client.consuming.subscription",
    "Subscription": "reliable_mq.client.consuming.subscription",
    "TLS": "reliable_mq.client.connecting.security",
    "Tick": "reliable_mq.periodic.declaration",
    "Topic": "reliable_mq.topic",
    "TopicChange": "reliable_mq.client.administering.topic_settings",
    "Transaction": "reliable_mq.outbox.sql_transaction",
    "injected": "reliable_mq.idempotency.keyed_function",
    "schema": "reliable_mq.outbox.schema",
}

__all__ = [
    "TLS",
    "AsyncClient",
    "AsyncPullConsumer",
    "AsyncSimpleConsumer",
    "AsyncTransaction",
    "Client",
    "ClientSettings",
    "CloudEvent",
    "Consumed",
    "Credentials",
    "Decision",
    "Delivery",
    "Ending",
    "GroupChange",
    "IdempotentCall",
    "LoggingMiddleware",
    "Message",
    "MessageQueue",
    "MessageTraceMiddleware",
    "Middleware",
    "OpenTelemetryMiddleware",
    "PeriodicState",
    "PrometheusMiddleware",
    "PullConsumer",
    "Recall",
    "ReceivedMessage",
    "Reject",
    "ReliableMQ",
    "Retry",
    "SendResult",
    "Sending",
    "SimpleConsumer",
    "Skip",
    "Sql",
    "Subscription",
    "Tick",
    "Topic",
    "TopicChange",
    "Transaction",
    "injected",
    "schema",
]


def __getattr__(name: str) -> Any:
    if name in {"Dead", "Later"}:
        from reliable_mq.outcomes import old_word  # noqa: PLC0415 - imported when it is first used

        return old_word(__name__, name)
    if name == "mq":
        raise ImportError(
            "reliable_mq has no mq: in a project of Django write `from reliable_mq.contrib.django "
            'import mq`; elsewhere import the object that you made, mq = ReliableMQ("shop"), from '
            "your own module"
        )
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
