"""Shared relays: they send the stubs that processes without a relay have committed.

Each database gets a thread that claims and sends. A second thread listens for commits, if the
database announces them. Workers and resend processes start shared relays if `relay="shared"`.
"""

import atexit
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from reliable_mq.database.sql_database import Database
from reliable_mq.database.thread_presence import Presence
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_unowned import SqlUnowned, channel_of
from reliable_mq.outbox.stub import Stub
from reliable_mq.outbox.thread_listener import CommitListener
from reliable_mq.outbox.thread_relay import RelayThread


class SharedHandover(NamedTuple):
    """Wakes the shared relay of a database after a commit, if this process runs it."""

    relays: "SharedRelays"
    database: str
    presence: Presence

    def accept_committed(self, stubs: Sequence[Stub]) -> None:  # noqa: ARG002
        """Wake the relay. The stubs have no owner; the relay that claims them sends them."""
        self.relays.wake(self.database)
        self.presence.show()


class SharedRelays:
    """Shared relays by the name of their database.

    Invariant: a database has at most one, and it runs until `close`.

    Args:
        make_relay: makes the relay of a database from its stubs and the owner's name.
        owner: the name of these relays in the tables.
        lease: seconds that their claims last.
    """

    def __init__(
        self, make_relay: Callable[[Database, SqlStubs, str], Relay], owner: str, lease: float
    ) -> None:
        self._make_relay = make_relay
        self._owner = owner
        self._lease = lease
        self._lock = threading.Lock()
        self._running: dict[str, tuple[RelayThread, CommitListener]] = {}

    def start(self, databases: Mapping[str, Database]) -> None:
        """Start the relays that are not running."""
        with self._lock:
            for name, database in databases.items():
                if name not in self._running:
                    self._running[name] = self._started(database)

    def _started(self, database: Database) -> tuple[RelayThread, CommitListener]:
        stubs = SqlStubs(database.engine, database.stubs)
        thread = RelayThread(
            self._make_relay(database, stubs, self._owner),
            database.clock.measured_now,
            unowned=SqlUnowned(stubs, owner=self._owner, lease=self._lease),
            is_told=lambda: listener.is_listening,
        )
        listener = CommitListener(database.engine, channel_of(database.stubs), thread.wake)
        listener.start()
        thread.start()
        atexit.register(thread.close)
        return thread, listener

    def waiting(self) -> dict[str, int]:
        """Return how many stubs wait in the relay of each database."""
        return {name: relay.waiting for name, (relay, _) in list(self._running.items())}

    def wake(self, name: str) -> None:
        """Wake a database's relay, if it runs in this process; never waits."""
        running = self._running.get(name)
        if running is not None:
            running[0].wake()

    def forget(self) -> None:
        """Forget the relays in a forked child, where their threads do not run."""
        for thread, _ in self._running.values():
            atexit.unregister(thread.close)

    def close(self, timeout: float) -> None:
        """Send claimed stubs for at most `timeout` seconds for each relay, then stop the relays."""
        with self._lock:
            running, self._running = list(self._running.values()), {}
        for thread, listener in running:
            atexit.unregister(thread.close)
            listener.close()
            thread.close(timeout)
