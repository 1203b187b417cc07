"""What an application is connected to in a world of tests: everything in memory, nothing by itself.

Stands in the place of `app.thread_connections.Connections`. Relays and notices run when `step` is
called, in the thread that calls it.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from reliable_mq.app.thread_connections import Connections
from reliable_mq.client.observing.middleware import Middleware
from reliable_mq.confirm.sql_owed_notices import OwedNotice, SqlNotices
from reliable_mq.confirm.thread_notices import Notices
from reliable_mq.consume.asyncio_worker import Worker
from reliable_mq.consume.consumer import Consumer
from reliable_mq.database.sql_database import Database
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.resend_policy import ResendPolicy
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.settings import Settings
from reliable_mq.testing.faults import Faults
from reliable_mq.testing.manual_clock import ManualClock
from reliable_mq.testing.memory_broker import MemoryBroker
from reliable_mq.testing.memory_client import MemoryClient
from reliable_mq.testing.memory_leases import LeaseTable, MemoryLeases

_numbers = itertools.count(10)


class MemoryConnections(Connections):
    """One life of an application's process in a world of tests.

    Args:
        name: the application's name.
        settings: its settings.
        policy: when a stub's next send is due.
        broker: the world's.
        clock: the world's.
        faults: the world's.
        leases: what Redis would remember; None: the database decides alone.
        middleware: the application's.
    """

    shares_relays = False
    records_later = False

    def __init__(
        self,
        name: str,
        settings: Settings,
        policy: ResendPolicy,
        *,
        broker: MemoryBroker,
        clock: ManualClock,
        faults: Faults,
        leases: LeaseTable | None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        super().__init__(name, settings, policy, self._leases_of(leases, faults), middleware)
        self._memory = (broker, clock, faults)
        self._in_step: dict[str, Relay] = {}
        self._telling: dict[str, _Telling] = {}

    def _check_broker(self, broker: str) -> None:
        """Accept any: the broker in memory takes its place."""

    @staticmethod
    def _leases_of(table: LeaseTable | None, faults: Faults) -> Callable[[], MemoryLeases | None]:
        return lambda: None if table is None else MemoryLeases(table, faults.switch.step)

    @property
    def client(self) -> MemoryClient:
        """The client, over the broker in memory."""
        with self._lock:
            if not isinstance(self._client, MemoryClient):
                broker, clock, faults = self._memory
                self._client = MemoryClient(
                    *(broker, clock, faults),
                    number=next(_numbers),
                    producer_group=f"{self._name}_relay",
                    middleware=self._outside_handlers(),
                    sign=self._sign,
                )
            return self._client

    def relay(self, name: str, database: Database, stubs: SqlStubs) -> "_InStep":
        """Make a database's relay, which sends when `step` is called."""
        if name not in self._in_step:
            self._in_step[name] = self._make_relay(database, stubs, self.owner)
        return _InStep(self._in_step, name)

    def step(self) -> int:
        """Send what was committed, let consumers handle what there is; return how much that was."""
        now = self._memory[1].now()
        sent = sum(relay.run_once(now).sent for relay in self._in_step.values())
        told = sum(each.notices.run_once(now, looks=True).sent for each in self._telling.values())
        return sent + told + self.loop_thread.run(self.client.step())

    def send_in_hand(self) -> None:
        """Send what was committed."""
        now = self._memory[1].now()
        for relay in self._in_step.values():
            while relay.run_once(now).sent:
                pass

    def start_worker(
        self, duty: str, consumers: Sequence[Consumer], databases: Mapping[str, Database]
    ) -> Worker:
        """Let consumers read when `step` is called."""
        for name in {each.database for each in consumers}:
            self._notices_of(name, databases[name])
        return super().start_worker(duty, consumers, databases)

    def _notices_of(self, name: str, database: Database) -> "_Telling":  # type: ignore[override]
        if name not in self._telling:
            debts = SqlNotices(database.engine, database.logs)
            self._telling[name] = _Telling(Notices(debts, self))
        return self._telling[name]

    @property
    def is_embedded(self) -> bool:
        """No process needs a scheduler of its own: the world is one."""
        return False

    def abandon(self) -> None:
        """Let everything go as SIGKILL does: nothing is sent, given back or said."""
        with self._lock:
            workers, self._workers = list(self._workers.values()), {}
            client, self._client = self._client, None
            thread, self._thread = self._thread, None
        self._in_step.clear()
        self._telling.clear()
        if client is not None:
            self._memory[0].disconnect(client.number)  # type: ignore[attr-defined]
        for worker in workers:
            if thread is not None:
                thread.run(worker.abandon())
        if thread is not None:
            thread.close()


class _InStep(NamedTuple):
    """Hands the committed stubs of one database to its relay."""

    relays: Mapping[str, Relay]
    database: str

    def accept_committed(self, stubs: Sequence[Stub]) -> None:
        """Hand stubs over while the process lives."""
        if self.database in self.relays:
            self.relays[self.database].accept(stubs, stubs[0].create_time)


class _Telling:
    """A `NoticeInbox` that tells when the world takes its step."""

    def __init__(self, notices: Notices) -> None:
        self.notices = notices

    def accept_committed(self, owed: Sequence[OwedNotice]) -> None:
        """Take what is committed."""
        self.notices.accept(owed)

    def look_soon(self) -> None:
        """Each step looks."""
