"""The half messages of one application in one of its databases, in this process.

Receives stubs before they are written, and the questions of brokers. Sends halves through the
client, and answers the questions from the table of stubs. Joins the producer group of application
and database when it is first needed: by a transaction with halves, a worker or a scheduler.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import CheckBack, Decision, Half, Message
from reliable_mq.outbox.check_backs import CheckBacks
from reliable_mq.outbox.half import half_group
from reliable_mq.outbox.relay import NextTime
from reliable_mq.outbox.sql_half import SqlHalves
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub, message_of
from reliable_mq.outbox.thread_link import ProcessLink
from reliable_mq.runtime.daemon_threads import DaemonThreads
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWERING_THREADS = 2
_SENT_AT_ONCE = 64


class Halves:
    """Sends halves, ends them, and answers check-backs for them.

    Invariant: a half is sent only after this process joined its group.

    Args:
        application: the application's name.
        link: the application's connections.
        database: the database of the stubs.
        next_time: returns when a stub's next send is due.
        lease: seconds that a check-back's claim of a stub lasts.
    """

    def __init__(
        self,
        application: str,
        link: ProcessLink,
        database: Database,
        next_time: NextTime,
        lease: float,
    ) -> None:
        self._application = application
        self._link = link
        self._database = database
        self._joined: AsyncClient | None = None
        self._lock = threading.Lock()
        self._threads = DaemonThreads(_ANSWERING_THREADS, "reliable-mq-check-back")
        stubs = SqlStubs(database.engine, database.stubs)
        self._check_backs = CheckBacks(
            SqlHalves(stubs),
            stubs,
            link.commit_halves,
            next_time,
            owner=f"{link.owner}-h",
            lease=lease,
            clock=database.clock.measured_now,
        )

    @property
    def group(self) -> str:
        """The producer group. The first call asks the database for its identity."""
        return half_group(self._application, self._database.identity.value())

    def join(self) -> None:
        """Start to answer check-backs for the group; a second call does nothing."""
        with self._lock:
            client = self._link.client
            if self._joined is not client:
                group = self.group
                self._run(client.transactions.join(group, self._answer))
                self._joined = client

    def send(self, stubs: Sequence[Stub]) -> None:
        """Send the halves of stubs; wait until a broker has stored all.

        Raises:
            MessageRefused, RemoteError, Unavailable: a half was not stored. The stored halves are
                rolled back.
        """
        self.join()
        self._run(self._send_all(stubs))

    async def send_async(self, stubs: Sequence[Stub]) -> None:
        """Send the halves of stubs from any event loop; see `send`."""
        await asyncio.to_thread(self.join)
        await asyncio.wrap_future(self._submit(self._send_all(stubs)))

    def roll_back(self, stubs: Sequence[Stub]) -> None:
        """Roll back the halves of stubs, soon and if possible; never waits.

        Call it only for stubs that no transaction can commit any more.
        """
        halves = self._link.open_halves.roll_back([stub.message_id for stub in stubs])
        if halves:
            with contextlib.suppress(ReliableMQError):  # closed; the broker will check back
                self._submit(self._post_all(halves))

    def close(self) -> None:
        """Stop answering check-backs."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, check: CheckBack) -> Decision | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._check_backs.answer, check)

    async def _send_all(self, stubs: Sequence[Stub]) -> None:
        group, room = self.group, asyncio.Semaphore(_SENT_AT_ONCE)

        async def send_one(message: Message) -> None:
            async with room:
                sent = time.time()
                half = await self._link.client.transactions.send(message, group)
                self._link.open_halves.add(half, sent)

        confirm_to = self._database.identity.notice_topic()
        messages = [message_of(stub, confirm_to=confirm_to) for stub in stubs]
        sent = await asyncio.gather(*map(send_one, messages), return_exceptions=True)
        failures = [each for each in sent if isinstance(each, BaseException)]
        if failures:
            self.roll_back(stubs)
            raise failures[0]

    async def _post_all(self, halves: Sequence[Half]) -> None:
        for half in halves:
            try:
                await self._link.client.transactions.post(half, Decision.ROLLBACK)
            except ReliableMQError as error:
                application_events.HALF_LEFT.log(
                    log, message_id=half.message_id, topic=half.queue.topic, error=error
                )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._link.loop_thread.run(work)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return self._link.loop_thread.submit(work)
