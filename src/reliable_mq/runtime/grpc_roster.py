"""The consumers of the gRPC endpoint as guests of the broker in its process.

Tools see them in the connections of their group, as those of Apache's broker with a proxy in it.
Source: Apache RocketMQ `ClientActivity.registerConsumer`.
"""

import time
from functools import partial

import msgspec

from reliable_mq.broker_core.clients import ConsumerData, RegisteredMember, SubscriptionData
from reliable_mq.broker_core.guests import Guests
from reliable_mq.gateway.asyncio_questions import subscriptions_of
from reliable_mq.gateway.codes import ClientKind
from reliable_mq.gateway.sessions import Session
from reliable_mq.wire.addresses import address_of
from reliable_mq.wire.compact_header import LANGUAGES

_VERSION = 413  # MQVersion.V5_0_0, which Apache's proxy says of all of them


class BrokerRoster:
    """Tells a broker about consumers.

    Args:
        guests: of the broker.
        connection: of the endpoint at the broker.
    """

    def __init__(self, guests: Guests, connection: int) -> None:
        self._guests = guests
        self._connection = connection

    def join(self, session: Session) -> None:
        """Note a consumer; see `Roster`."""
        member = RegisteredMember(
            self._connection,
            session.client_id,
            session.language if session.language in LANGUAGES else "OTHER",
            _VERSION,
            time.time_ns() // 1_000_000,
            _address_of(session),
            session.user,
        )
        self._guests.join(session.group, member, partial(_said_by, session))

    def leave(self, session: Session, group: str) -> None:
        """Forget a consumer; see `Roster`."""
        self._guests.leave(group, session.client_id, session.user, _address_of(session))


def _address_of(session: Session) -> str:
    """Return the address that tools see. A client has many connections, so no port is right."""
    return address_of(session.host, 0)


def _said_by(session: Session) -> ConsumerData:
    """Return what a consumer says of its group."""
    is_push = session.kind is ClientKind.PUSH_CONSUMER
    return ConsumerData(
        group_name=session.group,
        consume_type="CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=msgspec.convert(subscriptions_of(session), list[SubscriptionData]),
    )
