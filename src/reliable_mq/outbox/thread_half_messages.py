"""The half messages of an application in this process; each part is made when first needed."""

from collections.abc import Mapping

from reliable_mq.database.sql_database import Database
from reliable_mq.outbox.asyncio_listeners import Listeners
from reliable_mq.outbox.relay import NextTime
from reliable_mq.outbox.thread_halves import Halves
from reliable_mq.outbox.thread_link import ProcessLink
from reliable_mq.runtime.forks import call_in_child


class HalfMessages:
    """Halves by database, and the transaction listeners.

    Args:
        application: the application's name.
        link: the application's connections.
        databases: the databases by name.
        next_time: returns when a stub's next send is due.
        lease: seconds that a check-back's claim of a stub lasts.
    """

    def __init__(
        self,
        application: str,
        link: ProcessLink,
        databases: Mapping[str, Database],
        next_time: NextTime,
        lease: float,
    ) -> None:
        self._application = application
        self._link = link
        self._databases = databases
        self._next_time = next_time
        self._lease = lease
        self._halves: dict[str, Halves] = {}
        self.listeners = Listeners(application, link)
        call_in_child(self._forget_parent)

    def _forget_parent(self) -> None:
        self._halves = {}  # they claim stubs under the parent's name
        self.listeners.forget_parent()

    def of(self, database: str) -> Halves:
        """Return the halves of the stubs in one database."""
        if database not in self._halves:
            self._halves[database] = Halves(
                self._application,
                self._link,
                self._databases[database],
                self._next_time,
                self._lease,
            )
        return self._halves[database]

    def join(self) -> None:
        """Start to answer check-backs for all halves of the application, from any process."""
        for name in self._databases:
            self.of(name).join()
        if len(self.listeners):
            self.listeners.join()

    def close(self) -> None:
        """Stop answering check-backs."""
        halves, self._halves = list(self._halves.values()), {}
        for each in halves:
            each.close()
