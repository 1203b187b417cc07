"""Registrations that wait for their turn: one queue for all connections.

Receives registrations and time slices. Returns answers. One small and one large registration are
under way at a time, in steps. The decompressed body of a large one may take a hundred times the
memory.
"""

from collections.abc import Callable, Iterator

from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import REGISTRATIONS_SIZE_MAX, SMALL_REGISTRATION_SIZE_MAX
from reliable_mq.name_server.steps import Steps
from reliable_mq.wire.command import Command

Answered = tuple[int, Command, Command]
"""The connection, its registration, and the answer to it."""


class RegistrationQueue:
    """Registrations in order of arrival; small and large ones alternate.

    Invariant N3: each connection has at most one waiting registration. Their bodies together have
    at most REGISTRATIONS_SIZE_MAX bytes.

    Args:
        begin: starts the registration of a connection. Its result is the answer.
    """

    def __init__(self, begin: Callable[[int, Command], Steps[Command]]) -> None:
        self._begin = begin
        self._small: dict[int, Command] = {}  # by connection
        self._large: dict[int, Command] = {}
        self._under_way: dict[int, Steps[Command]] = {}  # by connection: the oldest of each kind
        self._size = 0  # of all bodies
        self._is_large_next = False

    def invariants(self) -> None:
        """N3; see the class."""
        commands = [*self._small.values(), *self._large.values()]
        if self._small.keys() & self._large.keys():
            raise InvariantBroken("N3: a connection has two registrations")
        if sum(len(command.body) for command in commands) != self._size:
            raise InvariantBroken(f"N3: {self._size} bytes are counted")
        if self._size > REGISTRATIONS_SIZE_MAX:
            raise InvariantBroken(f"N3: registrations of {self._size} bytes wait")

    def __contains__(self, connection: int) -> bool:
        return connection in self._small or connection in self._large

    def __bool__(self) -> bool:
        return bool(self._small or self._large)

    def add(self, connection: int, command: Command) -> bool:
        """Add the registration of a connection that has none here; False when there is no room."""
        size = len(command.body)
        if self._size + size > REGISTRATIONS_SIZE_MAX:
            return False
        self._size += size
        may_grow = size > 0 and command.ext_fields.get("compressed", "false") != "false"
        is_small = size <= SMALL_REGISTRATION_SIZE_MAX and not may_grow
        (self._small if is_small else self._large)[connection] = command
        return True

    def drop(self, connection: int) -> None:
        """Remove the registration of a closed connection."""
        self._under_way.pop(connection, None)
        for commands in (self._small, self._large):
            command = commands.pop(connection, None)
            if command is not None:
                self._size -= len(command.body)

    def work(self, is_over: Callable[[], bool]) -> Iterator[Answered]:
        """Work until the queue is empty or the time slice is over; yield the answers."""
        while self:
            self._is_large_next = bool(self._large) and (self._is_large_next or not self._small)
            answered = self._step(self._large if self._is_large_next else self._small)
            self._is_large_next = not self._is_large_next
            if answered is not None:
                self.drop(answered[0])
                yield answered
            if is_over():
                return

    def _step(self, commands: dict[int, Command]) -> Answered | None:
        """Run a step of the oldest registration of a kind."""
        connection, command = next(iter(commands.items()))
        steps = self._under_way.get(connection)
        if steps is None:
            steps = self._under_way[connection] = self._begin(connection, command)
        try:
            next(steps)
        except StopIteration as end:
            return connection, command, end.value
        return None
