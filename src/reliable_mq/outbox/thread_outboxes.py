"""The outboxes of an application: for each database one, and a second one for half messages."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_transactions import Handover
from reliable_mq.database.thread_presence import Presence
from reliable_mq.outbox.cloud_events import Envelope
from reliable_mq.outbox.sql_half_outbox import HalfOutbox
from reliable_mq.outbox.sql_outbox import SqlOutbox
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.thread_half_messages import HalfMessages
from reliable_mq.outbox.thread_link import ProcessLink
from reliable_mq.outbox.thread_shared_relays import SharedHandover
from reliable_mq.runtime.forks import call_in_child


class OpenOutbox(NamedTuple):
    """An outbox, and what makes sessions of its database."""

    outbox: SqlOutbox
    session: Callable[[], Session]
    async_session: Callable[[], AsyncSession]


class Outboxes:
    """Outboxes by database. Each is made at its first use.

    Args:
        link: runs the relays.
        databases: the databases by name.
        half_messages: sends the halves.
        relay_lease: seconds for which only its relay may send a new stub.
        timer_range: how far ahead brokers accept a message's time, in seconds.
        is_shared: the relay of any process may send what is committed here.
        groups_of_topic: returns the consumer groups that a message of a topic and tag must reach.
        known_groups: its earlier answers, see `Composer`.
        on_first_send: called before an outbox is made.
        envelopes: the envelopes of topics that have one.
    """

    def __init__(
        self,
        link: ProcessLink,
        databases: Mapping[str, Database],
        half_messages: HalfMessages,
        *,
        relay_lease: float,
        timer_range: float,
        is_shared: bool,
        groups_of_topic: Callable[[str, str], tuple[str, ...]],
        known_groups: Mapping[tuple[str, str], tuple[str, ...]],
        on_first_send: Callable[[], None],
        envelopes: Mapping[str, Envelope] = MappingProxyType({}),
    ) -> None:
        self._link = link
        self._databases = databases
        self._half_messages = half_messages
        self._relay_lease = relay_lease
        self._timer_range = timer_range
        self._is_shared = is_shared
        self._groups_of_topic = groups_of_topic
        self._known_groups = known_groups
        self._envelopes = envelopes
        self._on_first_send = on_first_send
        #: the outboxes that were made, by (database, half)
        self.made: dict[tuple[str, bool], OpenOutbox] = {}
        call_in_child(self.forget)

    def of(self, name: str, half: bool) -> OpenOutbox:
        """Return the outbox of a database; with `half` the one that sends half messages.

        Raises:
            ConfigurationError: there is no such database.
        """
        made = self.made.get((name, half))
        if made is not None:
            return made
        database = self._databases[name]
        self._on_first_send()
        if half:
            database.identity.value()  # before the session has locked anything
        stubs = SqlStubs(database.engine, database.stubs)
        kind = partial(HalfOutbox, self._half_messages.of(name)) if half else SqlOutbox
        is_shared = self._is_shared and not half  # the process that sent a half ends it
        outbox = kind(
            stubs,
            self._handover(name, stubs, is_shared=is_shared),
            owner=None if is_shared else self._link.owner,
            lease=self._relay_lease,
            timer_range=self._timer_range,
            groups_of_topic=self._groups_of_topic,
            known_groups=self._known_groups,
            envelopes=self._envelopes,
            clock=database.clock.now_on,
        )
        opened = OpenOutbox(outbox, database.session, database.async_session)
        self.made[name, half] = opened
        return opened

    def _handover(self, name: str, stubs: SqlStubs, *, is_shared: bool) -> Handover:
        database = self._databases[name]
        if is_shared:
            shared = SharedHandover(self._link.shared_relays, name, Presence(database.clock))
            return database.handover_to(shared)
        return database.handover_to(self._link.relay(name, database, stubs))

    def forget(self) -> None:
        """Forget all outboxes: a forked child writes stubs under its own name."""
        self.made = {}
