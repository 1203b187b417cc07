"""What the outbox needs from its process: an event loop, a client, relays."""

from collections.abc import Sequence
from typing import Protocol

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_transactions import Handover
from reliable_mq.message import Half, SendResult
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.thread_open_halves import OpenHalves
from reliable_mq.outbox.thread_shared_relays import SharedRelays
from reliable_mq.runtime.loop_thread import LoopThread


class ProcessLink(Protocol):
    """The connections of an application in this process. Each part is made when first needed."""

    @property
    def loop_thread(self) -> LoopThread:
        """The thread with the client's event loop."""
        ...

    @property
    def client(self) -> AsyncClient:
        """The client, started."""
        ...

    @property
    def owner(self) -> str:
        """The name of this process as an owner of rows."""
        ...

    @property
    def open_halves(self) -> OpenHalves:
        """The halves that this process has sent and that have not ended."""
        ...

    @property
    def shared_relays(self) -> SharedRelays:
        """The relays that send what any process has committed."""
        ...

    def relay(self, name: str, database: Database, stubs: SqlStubs) -> Handover:
        """Start the relay of a database, if it does not run; return its handover for stubs."""
        ...

    def commit_halves(self, halves: Sequence[Half]) -> list[SendResult | Exception]:
        """Commit halves; the results are in their order."""
        ...
