"""Which requests a broker serves: a master, a slave, or a former master."""

from reliable_mq.broker_core.requests.at_slave import Find, at_slave, before_online
from reliable_mq.broker_core.requests.guarded import guarded
from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.broker_core.state import BrokerState


class Serving:
    """What one broker serves.

    Attributes:
        handler_of: returns the handler of a request's code.
        is_plain: whether a send may be stored without a look at its handler.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state, guard = state, state.guard
        found: Find = HANDLERS.get if guard is None else guarded(guard)
        is_slave = state.config.is_slave
        self.handler_of = at_slave(found) if is_slave else found
        self._online = self._isolated = self.handler_of
        self.is_plain = not is_slave

    def fence(self) -> None:
        """Refuse what a master does."""
        self.handler_of, self.is_plain = at_slave(self.handler_of), False

    def isolate(self) -> None:
        """Serve nobody but slaves, until `go_online`."""
        self.handler_of, self.is_plain = before_online(self.handler_of), False
        self._isolated = self.handler_of

    def go_online(self) -> None:
        """Serve everybody, if this broker was not fenced meanwhile."""
        if self.handler_of is self._isolated:
            self.handler_of = self._online
            self.is_plain = not self._state.config.is_slave
