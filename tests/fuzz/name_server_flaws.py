"""Flaws of a name server: each takes out a mend of what many brokers cost."""

import time
from collections.abc import Callable, Iterator

import msgspec

from reliable_mq.name_server import routes
from reliable_mq.name_server.name_server_limits import NameServerLimits
from reliable_mq.name_server.registration_queue import Answered, RegistrationQueue
from reliable_mq.name_server.steps import Steps

_ENDLESS = 2**62


def put(owner: object, name: str, value: object) -> None:
    """Replace something that is there under this name."""
    if not hasattr(owner, name):
        raise LookupError(f"{owner} has no {name} that could be taken out")
    setattr(owner, name, value)


def put_no_limit(*names: str) -> None:
    """Take out limits of the tables of a name server."""
    known = routes.RouteTable.__init__

    def unlimited(self: routes.RouteTable, limits: NameServerLimits | None = None) -> None:
        endless = dict.fromkeys(names, _ENDLESS)
        known(self, msgspec.structs.replace(limits or NameServerLimits(), **endless))

    put(routes.RouteTable, "__init__", unlimited)


def brokers_without_bounds() -> None:
    """Any number of brokers is known, and who goes costs a look at every topic."""
    forget = routes.RouteTable._forget

    def looked(self: routes.RouteTable, key: tuple[str, str]) -> None:
        forget(self, key)
        for queues in self._topics.values():
            if any(row.broker_name == key[1] for row in queues.values()):
                return

    put_no_limit("brokers", "brokers_of_connection")
    put(routes.RouteTable, "_forget", looked)


def registrations_side_by_side() -> None:
    """All registrations that came are under way, and each gets a slice in each turn."""
    begun: dict[int, Steps[object]] = {}

    def work(self: RegistrationQueue, _is_over: Callable[[], bool]) -> Iterator[Answered]:
        for connection, command in [*self._large.items(), *self._small.items()]:
            if connection not in begun:
                begun[connection] = self._begin(connection, command)
            end = time.monotonic() + 0.01
            try:
                while time.monotonic() < end:
                    next(begun[connection])
            except StopIteration as done:
                self.drop(connection)
                yield connection, command, done.value

    put(RegistrationQueue, "work", work)
