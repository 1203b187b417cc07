"""A world for the tests of an application: its own code and database, everything else in memory.

The broker is the real core on a disk in memory, the client's flows and the consumer's protocol are
the real ones; only sockets, threads and time are not. Nothing happens by itself: the test says when
messages are delivered and when time passes, and what goes wrong meanwhile.

    with MessageWorld(mq) as world:
        place_order()                        # the application's code, with mq.transaction()
        world.assert_sent("orders", {"id": 1})
        world.deliver()                      # its consumers handle what there is
        world.advance(hours=2)               # delays, retries and resends come
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from difflib import get_close_matches
from inspect import isawaitable
from typing import Any, Self, TypeVar

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.thread_resending import NoticeReading
from reliable_mq.client.consuming.pulling import received
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import UsageError
from reliable_mq.extras import ExtraMissing
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX
from reliable_mq.periodic.thread_periodic import PeriodicSender
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.testing.crash_points import taking_steps
from reliable_mq.testing.crash_switch import Crashed, CrashSwitch
from reliable_mq.testing.effect_check import EffectCheck
from reliable_mq.testing.faults import Faults
from reliable_mq.testing.manual_clock import ManualClock
from reliable_mq.testing.memory_broker import MemoryBroker
from reliable_mq.testing.memory_connections import MemoryConnections
from reliable_mq.testing.memory_leases import LeaseTable
from reliable_mq.testing.sent_messages import ExpectedMessage, refuse_unless_sent
from reliable_mq.testing.sql_emptying import begin_empty
from reliable_mq.testing.sql_unsettled import problem_of, unsettled_stubs
from reliable_mq.topic import Topic, name_of

log = logging.getLogger(__name__)
T = TypeVar("T")

_STEPS = 30
"""Time that passes is cut into so many steps, of a second at least."""
_QUIET_SECONDS_MAX = 86_400.0


class MessageWorld:
    """One application in a world of tests. A context manager.

    Invariant: between two calls nothing runs; what is not delivered waits.

    Args:
        mq: the application, as it is declared. Its database is the one of its settings, with our
            tables in it (`mq.create_tables()`); broker and Redis of its settings are not used.
        redis: whether there are leases, as with Redis; False: the database decides alone.
        seed: of everything that is left to chance.
        empties: whether our ledgers are emptied when the world begins: stubs, consume logs, keys,
            escalations, ticks. Default None: if the database is for tests only, see
            `testing.sql_emptying`.
        **properties: settings of the broker, by Apache RocketMQ's names.

    Raises:
        ConfigurationError: when a property does not read, or the broker has none of its name.
        UsageError: when it begins, and messages wait in a database that may be a developer's.
    """

    def __init__(
        self,
        mq: ReliableMQ,
        *,
        redis: bool = True,
        seed: int = 0,
        empties: bool | None = None,
        **properties: str,
    ) -> None:
        if not isinstance(mq, ReliableMQ):
            raise UsageError(f"MessageWorld({type(mq).__name__}): give it your ReliableMQ")
        self.mq = mq
        self._empties = empties
        self.clock = ManualClock()
        self.broker = MemoryBroker(self.clock, **properties)
        #: what goes wrong next
        self.faults = Faults(seed)
        #: what Redis would remember; None without it
        self.leases = LeaseTable(self.clock.now) if redis else None
        self._real_connections = mq._connections
        self._real_clocks: dict[str, Any] = {}
        self._connections: MemoryConnections | None = None
        self._periodic: list[PeriodicSender] = []
        self._schedulers: dict[str, Scheduler] = {}  # of this life, by the name of their database

    def __enter__(self) -> Self:
        for database in self.mq.databases.values():
            database.check_commits()
            database.check_tables()
            begin_empty(database, empties=self._empties)
        for name, database in self.mq.databases.items():
            self._real_clocks[name] = database.clock
            database.clock = self.clock  # type: ignore[assignment]
        self._begin_life()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_life()
        for name, clock in self._real_clocks.items():
            self.mq.databases[name].clock = clock
        self.mq._use_connections(self._real_connections)

    # what happens

    def deliver(self) -> int:
        """Send what was committed and let consumers handle it, until nothing moves.

        Returns how many steps of that were made: sends, and messages handled. What a handler sends
        is delivered too; what is delayed, or to be tried again later, waits for `advance`.

        Raises:
            Crashed: when `crash` has killed the process; `restart` begins its next life.
        """
        total = 0
        while moved := self._life.step():
            total += moved
            self._read_notices()
        return total

    def _read_notices(self) -> None:
        """Read what groups in other databases report, as the scheduler's process does."""
        if len(self.mq.databases) > 1:
            self._reading.begin()

    def advance(self, seconds: float = 0.0, **units: float) -> int:
        """Let time pass, with everything that becomes due meanwhile: `advance(hours=2)`.

        Delays end, retries come, leases pass, check-backs are asked. Periodic messages are sent at
        each of their ticks. The resend scheduler looks as often as it would, but not more than
        thirty times.

        Args:
            seconds: so many, and
            **units: what `timedelta` takes: minutes, hours, days.
        """
        left = seconds + timedelta(**units).total_seconds()
        step = max(1.0, left / _STEPS)
        end = self.clock.now() + left
        looks_at = self.clock.now() + step
        total = self._fire_ticks() + self.deliver()
        while (now := self.clock.now()) < end:
            self.clock.advance(min(looks_at, end, max(self._next_tick(), now)) - now)
            total += self._fire_ticks()
            if self.clock.now() >= min(looks_at, end):
                looks_at += step
                self.broker.tick()
                for name in self.mq.databases:
                    self._scheduler(name).run_once(self.clock.now())
            total += self.deliver()
        return total

    def _scheduler(self, database: str) -> Scheduler:
        if database not in self._schedulers:
            self._schedulers[database] = self.mq.scheduler(database=database)
        return self._schedulers[database]

    def _fire_ticks(self) -> int:
        """Fire the periodic messages that are due; return how many messages that were."""
        now = self.clock.now()
        return sum(each.run_once(now).messages for each in self._periodic)

    def _next_tick(self) -> float:
        """Return when the next tick, or try of one, may be due."""
        times = (each.next_time for each in self._periodic)
        return min((each for each in times if each is not None), default=math.inf)

    def settle(self) -> None:
        """Let time pass until every stub is confirmed, voided or given up.

        Raises:
            AssertionError: when that takes more than a day; names the stubs.
        """
        self.deliver()
        passed, step = 0.0, 1.0
        while waiting := unsettled_stubs(self.mq.databases.values()):
            if passed > _QUIET_SECONDS_MAX:
                raise AssertionError(f"after a day {problem_of(waiting, self.mq.consumer_groups)}")
            self.advance(step)
            passed += step
            step = min(2 * step, 3600.0)

    @contextmanager
    def crash(self, at: int | str) -> Iterator[CrashSwitch]:
        """Kill the process at a step of what the block does; it lives again after the block.

        Args:
            at: the number of the step, from 0, or its name. After a block that was not killed,
                `names` of the returned switch lists all names. `crash_here("paid")` of
                `testing.crash_points` makes a step in the application's own code.

        If the block ends before that step, the process is not killed: see `dead` of the returned
        switch. If the step was given by name, there is a warning, because the name may be wrong.
        """
        with self._dying(at) as switch:
            yield switch
        if isinstance(at, str) and not switch.dead:
            close = get_close_matches(at, switch.names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            warnings.warn(
                f"no step was named {at!r}, so the process was not killed{hint}", stacklevel=3
            )

    @contextmanager
    def _dying(self, at: int | str) -> Iterator[CrashSwitch]:
        switch = self.faults.switch = CrashSwitch(at)
        self._watch(switch)
        try:
            with taking_steps(switch):
                yield switch
        except Crashed:
            if not switch.dead:
                raise
        finally:
            in_use = switch.in_use if switch.dead else []
            switch.release()
            self.faults.switch = CrashSwitch()
            if switch.dead:
                self.restart(in_use)

    def restart(self, in_use: Sequence[Any] = ()) -> None:
        """Kill the application's process and begin its next life; leases of the dead pass first.

        Args:
            in_use: connections of the database's driver that the dead had in use.
        """
        self._abandon_life(in_use)
        self.clock.advance(
            self.mq.settings.claim_lease_seconds + self.mq.settings.relay_lease_seconds
        )
        self._begin_life()

    # what is there

    def sent(self, topic: str | Topic[Any]) -> list[ReceivedMessage]:
        """Return the messages of a topic, each once, in the order in which they were stored."""
        self._life.send_in_hand()
        return list({message.message_id: message for message in self._stored(topic)}.values())

    def sent_times(self, message_id: str, topic: str | Topic[Any]) -> int:
        """Return how often a message was stored in its topic: resends are duplicates there."""
        return sum(each.message_id == message_id for each in self._stored(topic))

    def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """Return the dead letters of a consumer group."""
        return self._stored(DEAD_LETTER_PREFIX + group)

    def assert_sent(
        self,
        topic: str | Topic[T],
        payload: T | None = None,
        *,
        times: int = 1,
        tag: str | None = None,
        key: object = None,
        ordering_key: object = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[ReceivedMessage]:
        """Fail unless so many messages were sent to a topic; return them.

        Args:
            topic: the topic.
            payload: what `tx.send` was given; compared as it is on the wire. None: any.
            times: how many messages, resends of one not counted; 0: none at all.
            tag, key, ordering_key: what they must be; None: any.
            properties: that they must have, among others.
        """
        wanted = ExpectedMessage(payload, tag, key, ordering_key, properties or {})
        return refuse_unless_sent(name_of(topic), self.sent(topic), wanted, times)

    # lives

    @property
    def _life(self) -> MemoryConnections:
        if self._connections is None:
            raise UsageError("this world has not begun: write `with MessageWorld(mq) as world:`")
        return self._connections

    def _begin_life(self) -> None:
        mq = self.mq
        self._connections = MemoryConnections(
            *(mq.name, mq.settings, mq._policy),
            broker=self.broker,
            clock=self.clock,
            faults=self.faults,
            leases=self.leases,
            middleware=mq._middleware,
        )
        mq._use_connections(self._connections)
        # The end of the application's own lifespan is not the end of the world.
        mq._life.close = self._connections.send_in_hand  # type: ignore[method-assign]
        self._schedulers = {}
        self._reading = NoticeReading(
            self._connections, mq.databases, mq.settings.claim_lease_seconds
        )
        consumers = mq._declared.consumers
        if consumers:
            self._connections.start_worker("consumers", consumers, mq.databases)
        mq._half_messages.join()
        self._periodic = list(mq._life.periodic_senders().values())
        self._fire_ticks()  # from now on their ticks count

    def _end_life(self) -> None:
        self.mq._half_messages.close()
        self._life.close()
        self._connections = None

    def _abandon_life(self, in_use: Sequence[Any]) -> None:
        life, self._connections = self._life, None
        databases = list(self.mq.databases.values())

        async def close_all() -> None:
            for connection in in_use:
                await _close(connection)
            for database in databases:
                await database.close_async()

        self.mq._half_messages.close()
        life.loop_thread.run(close_all())
        life.abandon()
        for database in databases:
            database.close()

    def _watch(self, switch: CrashSwitch) -> None:
        for database in self.mq.databases.values():
            switch.watch(database.engine)
            with suppress(ExtraMissing):  # no asynchronous driver: nobody uses such an engine
                switch.watch(self._life.loop_thread.run(_async_engine(database)))

    def _stored(self, topic: str | Topic[Any]) -> list[ReceivedMessage]:
        name = name_of(topic)
        return [
            received(record, MessageQueue(name, "memory", record.queue_id))
            for record in self.broker.records(name)
        ]

    # every fault there is

    def assert_effect_once(
        self,
        act: Callable[[], Any],
        effects: Callable[[Any], int],
        *,
        every_step: bool = True,
    ) -> list[str]:
        """Fail unless what `act` begins has exactly one effect, whatever goes wrong.

        It is done again and again, each time under another fault: a duplicate, a lost
        acknowledgement, a lost reply, no broker for a while, leases forgotten; then the process is
        killed at every step it takes from the commit on, and lives again.

        Args:
            act: does it once more, for another order each time, and returns what `effects` needs
                to know which one; its transaction is not killed, it commits or it does not.
            effects: how many effects there are of what `act` returned.
            every_step: also with a death at every step, each the first time it is taken; False is
                much faster.

        Returns:
            The faults that were tried, by name.

        Raises:
            AssertionError: names the fault and how many effects there were.
        """
        check = EffectCheck(self, act, effects)
        return check.run(self._dying if every_step else None)


async def _close(connection: Any) -> None:
    """Let go of a driver's connection as the kernel would, whoever believes to have it."""
    driver = getattr(connection, "driver_connection", connection)
    for end in (driver.rollback, driver.close):
        with suppress(Exception):
            ended = end()
            if isawaitable(ended):
                await ended


async def _async_engine(database: Database) -> Any:
    return database.async_engine.sync_engine
