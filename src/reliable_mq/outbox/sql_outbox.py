"""The outbox: messages become stubs in the transaction of a session.

Receives a session and a message. Hands on its stub: inserted at once, so that a savepoint that is
rolled back takes it along, and handed to the relay when the session has committed. Refuses what
could not be sent later.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypedDict

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from reliable_mq.client.outgoing import check_message, properties_of
from reliable_mq.client.subscription import check_name
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.limits import GROUP_LENGTH_MAX
from reliable_mq.message import NOTICE_TOPIC_PREFIX, new_message_id
from reliable_mq.outbox.delay import delay_level_of, seconds_of
from reliable_mq.outbox.payload import encode_payload
from reliable_mq.outbox.sql_same_database import SameDatabase
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub, check_texts, message_of
from reliable_mq.sql_types import is_missing_table, missing_table_text

log = logging.getLogger(__name__)

_PENDING = "reliable_mq.pending"
_ROLLED_BACK = "reliable_mq.rolled_back"
_SOME_TOPIC = NOTICE_TOPIC_PREFIX + "0" * 16  # as long as the one that it is sent with
_FEW_GROUPS = 16  # their names cannot be too long for a record's properties
_ID_LENGTH = 32
_LEGAL_ID = re.compile(f"[0-9A-Za-z_-]{{{_ID_LENGTH}}}")


class MessageOptions(TypedDict, total=False):
    """What may be said of a message that is sent; see `Transaction.send`."""

    tag: str
    key: object
    ordering_key: object
    delay: timedelta | None
    properties: Mapping[str, str] | None
    message_id: str


class StubOptions(MessageOptions, total=False):
    """What may be said of a message that has a stub."""

    required_groups: tuple[str, ...] | None


class Handover(Protocol):
    """What takes committed stubs over: the relay's thread."""

    def hand(self, stubs: list[Stub], written: float) -> None:
        """Take stubs that were written at `written`; must not wait."""
        ...


class SqlOutbox:
    """Writes stubs into the transactions of sessions.

    Args:
        stubs: the table.
        relay: takes the stubs after the commit.
        owner: the relay's name in the table.
        lease: seconds for which a stub is the relay's alone.
        groups_of_topic: the consumer groups a message of a topic and tag must reach, when not
            told.
        clock: tells the time by which the rows are judged, seconds since the epoch.
    """

    def __init__(
        self,
        stubs: SqlStubs,
        relay: Handover,
        *,
        owner: str,
        lease: float,
        groups_of_topic: Callable[[str, str], tuple[str, ...]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._stubs = stubs
        self._same_database = SameDatabase(stubs.engine, stubs.table)
        self._relay = relay
        self._owner = owner
        self._lease = lease
        self._groups_of_topic = groups_of_topic
        self._clock = clock

    def write(
        self,
        session: Session,
        topic: str,
        payload: Any,
        *,
        tag: str = "",
        key: object = "",
        ordering_key: object = "",
        delay: timedelta | None = None,
        properties: Mapping[str, str] | None = None,
        required_groups: tuple[str, ...] | None = None,
        message_id: str = "",
    ) -> str:
        """Write one stub into the session's transaction and return its message id."""
        now = self._clock()
        body, content_type = encode_payload(payload)
        deliver_time = None
        if delay is not None:
            delay_level_of(seconds_of(delay))
            deliver_time = now + seconds_of(delay)
        if required_groups is None:
            groups = self._groups_of_topic(topic, tag)
        else:
            groups = checked_groups(required_groups)
        stub = Stub(
            seq=0,
            message_id=checked_id(message_id) or fresh_message_id(now),
            topic=topic,
            content=body,
            tag=tag,
            message_key=key_text(key),
            ordering_key=key_text(ordering_key),
            content_type=content_type,
            properties=dict(properties or {}),
            required_groups=groups,
            deliver_time=deliver_time,
        )
        # What cannot be sent is refused here, not later.
        check_texts(stub.tag, stub.message_key, stub.ordering_key)
        message = message_of(stub, 0, confirm_to=_SOME_TOPIC)
        check_message(message)
        if properties or len(groups) > _FEW_GROUPS:
            properties_of(message)
        # The caller's changes first: whoever waits for a row of theirs gets a later stub, too, so
        # that stubs of one ordering key have the order of the business.
        session.flush()
        connection = session.connection()
        self._same_database.check(connection)
        self._before_insert(connection, [stub])
        try:
            (stub,) = self._stubs.write(connection, [stub], self._owner, now, self._lease)
        except DBAPIError as error:
            self._not_inserted([stub], now, error)
            raise
        # Committed or not, gone with a savepoint or not: the relay reads it back before it sends.
        session.info.setdefault(_PENDING, []).append((self._relay, stub, now))
        return stub.message_id

    def _before_insert(self, connection: Connection, stubs: Sequence[Stub]) -> None:
        """Do what comes before stubs are inserted, in the caller's transaction."""

    def _not_inserted(self, stubs: Sequence[Stub], now: float, error: DBAPIError) -> None:  # noqa: ARG002
        """Raise what says more than `error` why stubs written at `now` were not inserted."""
        if is_missing_table(error):
            raise ConfigurationError(missing_table_text(self._stubs.table.name)) from error


def key_text(key: object) -> str:
    """Return a key as a message carries it; None is none, as a nullable column says it."""
    return "" if key is None else str(key)


def checked_groups(groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return consumer groups that a caller named.

    Raises:
        UsageError: when it is one name instead of several, or one is no legal name.
    """
    if isinstance(groups, str):
        raise UsageError(f"required_groups={groups!r}: a tuple of names is needed")
    for group in groups:
        check_name("consumer group", group, GROUP_LENGTH_MAX)
    return groups


def fresh_message_id(now: float) -> str:
    """Return a new message id for the time `now`, seconds since the epoch."""
    return new_message_id(int(now * 1000), os.urandom(10))


def checked_id(message_id: str) -> str:
    """Return the id a user chose.

    Raises:
        UsageError: when it is not empty and not 32 characters long, or holds others than those.
    """
    if message_id and not _LEGAL_ID.fullmatch(message_id):
        raise UsageError(
            f"message_id {message_id!r} must have {_ID_LENGTH} characters of a-z A-Z 0-9 _ -"
        )
    return message_id


@event.listens_for(Session, "after_commit")
def _hand_over(session: Session) -> None:
    """Hand the stubs of a committed session to their relays, in the order of their rows."""
    if session.in_nested_transaction():  # a savepoint was released; nothing is committed yet
        return
    batches: dict[int, tuple[Handover, list[Stub], float]] = {}
    for relay, stub, written in session.info.pop(_PENDING, ()):
        batches.setdefault(id(relay), (relay, [], written))[1].append(stub)
    for relay, stubs, first_written in batches.values():
        relay.hand(stubs, first_written)


@event.listens_for(Session, "after_transaction_end")
def _forget(session: Session, transaction: SessionTransaction) -> None:
    """Forget the stubs of a transaction that ended without a commit."""
    if transaction.parent is not None:
        return
    lost = session.info.pop(_PENDING, ())
    was_meant = session.info.pop(_ROLLED_BACK, False) or sys.exc_info()[0] is not None
    if lost and not was_meant:
        log.error(
            "%d message(s) were written into a transaction that was closed without commit and are "
            "gone with it; the session was in a transaction before mq.transaction(session) joined "
            "it, so its owner must call commit()",
            len(lost),
        )


@event.listens_for(Session, "after_rollback")
def _note_rollback(session: Session) -> None:
    """Note that somebody decided against the session's transaction, or a part of it."""
    if session.info.get(_PENDING):
        session.info[_ROLLED_BACK] = True
