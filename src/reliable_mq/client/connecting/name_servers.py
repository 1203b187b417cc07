"""Selects a name server: the same one while it answers, then the next."""

from reliable_mq.client.flow import Flow, call
from reliable_mq.errors import ConfigurationError, ConnectionLost, Unavailable, WrongPeer
from reliable_mq.wire.addresses import split_addresses
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.remote_faults import no_name_server


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
        self._known = set[str]()  # those that answered a question of a name server

    @property
    def addresses(self) -> tuple[str, ...]:
        """All name servers, in the given order."""
        return self._addresses

    @property
    def has_answered(self) -> bool:
        """Whether a name server has answered a question."""
        return bool(self._known)

    def ask(self, command: Command) -> Flow[Command]:
        """Return the reply of the first name server that answers, whatever its code.

        Raises:
            Unavailable: when none answers.
            WrongPeer: when only brokers answer.
        """
        reasons: list[str] = []
        wrong: list[str] = []
        for _ in self._addresses:
            address = self._addresses[self._current]
            try:
                reply = yield from call(address, command, self._timeout)
            except Unavailable as error:
                text = str(error)
                reasons.append(text if text.startswith(address) else f"{address}: {text}")
            else:
                if reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or address in self._known:
                    self._known.add(address)
                    return reply
                wrong.append(no_name_server(address))
            self._current = (self._current + 1) % len(self._addresses)
        if wrong and not reasons:
            raise WrongPeer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "; ".join(wrong))
        raise ConnectionLost(f"no name server answers ({'; '.join(reasons + wrong)})")
