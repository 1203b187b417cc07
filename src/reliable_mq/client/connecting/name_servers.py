"""Selects a name server: the same one while it answers, then the next."""

from reliable_mq.client.flow import Flow, call
from reliable_mq.errors import ConfigurationError, ConnectionLost, Unavailable
from reliable_mq.wire.addresses import split_addresses
from reliable_mq.wire.command import Command


def parse_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses in "host:port;host:port".

    Raises:
        ConfigurationError: when there is no address, or one is not host:port.
    """
    if not isinstance(text, str):
        raise ConfigurationError(
            f'name servers are given as one text, "host:port;host:port", not {type(text).__name__}'
        )
    return split_addresses(text)


class NameServers:
    """Sends questions to the name server that answered last; if it fails, to the next."""

    def __init__(self, addresses: tuple[str, ...], timeout: float) -> None:
        self._addresses = addresses
        self._timeout = timeout
        self._current = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """All name servers, in the given order."""
        return self._addresses

    def ask(self, command: Command) -> Flow[Command]:
        """Return the reply of the first name server that answers, whatever its code.

        Raises:
            Unavailable: when none answers.
        """
        reasons: list[str] = []
        for _ in self._addresses:
            address = self._addresses[self._current]
            try:
                return (yield from call(address, command, self._timeout))
            except Unavailable as error:
                reasons.append(f"{address}: {error}")
                self._current = (self._current + 1) % len(self._addresses)
        raise ConnectionLost(f"no name server answers ({'; '.join(reasons)})")
