"""How many connections a listener keeps open, in all and of one address. Pure.

It receives addresses, and says why a new connection is refused.
"""

import ipaddress
from collections import Counter
from collections.abc import MutableMapping
from typing import Annotated

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import ConfigurationError
from reliable_mq.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_OF_ADDRESS_MAX,
    FRAME_SIZE_MAX,
    RECEIVED_SIZE_MAX,
    UNSENT_SIZE_MAX,
)
from reliable_mq.wire.java_int import I32_MAX

_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Size = Annotated[int, msgspec.Meta(ge=4 * FRAME_SIZE_MAX, le=I32_MAX)]  # for many peers
_NETWORK_LENGTH = len("2001:0db8:0000:0000")  # one subscriber has a whole IPv6 network of 64 bits


@decodable
class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a listener; sizes in bytes, for all connections together.

    Attributes:
        connections: open connections.
        of_address: open connections of one address, or of one IPv6 network of 64 bits.
        received_size: incomplete frames and requests that wait.
        unsent_size: answers that were not read.
    """

    connections: _Count = msgspec.field(default=CONNECTIONS_MAX, name="maxConnections")
    of_address: _Count = msgspec.field(
        default=CONNECTIONS_OF_ADDRESS_MAX, name="maxConnectionsOfAddress"
    )
    received_size: _Size = msgspec.field(default=RECEIVED_SIZE_MAX, name="maxReceivedBytes")
    unsent_size: _Size = msgspec.field(default=UNSENT_SIZE_MAX, name="maxUnsentBytes")


def take_limits(properties: MutableMapping[str, str]) -> ConnectionLimits:
    """Remove the properties of limits from `properties`, and return what they say.

    Raises:
        ConfigurationError: when a value is not a number in its range.
    """
    names = {field.encode_name for field in msgspec.structs.fields(ConnectionLimits)}
    values = {name: properties.pop(name) for name in names & properties.keys()}
    try:
        return msgspec.convert(values, ConnectionLimits, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"a limit of connections: {error}") from error


class Admission:
    """Counts open connections.

    Invariant X4: the counts of all addresses are the connections that were admitted and have not
    left.

    Args:
        limits: the limits; they may change. A lower one closes nothing that is open.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.refused = 0  # since the start
        self._of_connection: dict[int, str] = {}  # the network of each, by id
        self._counts: Counter[str] = Counter()

    def admit(self, connection_id: int, ip: str) -> str:
        """Count a connection. Return why it is refused and not counted; "": it is not."""
        network = _network_of(ip)
        if len(self._of_connection) >= self.limits.connections:
            self.refused += 1
            return f"{self.limits.connections} connections are open (maxConnections)"
        count = self._counts[network]
        if count >= self.limits.of_address:
            self.refused += 1
            return f"it has {count} connections already (maxConnectionsOfAddress)"
        self._counts[network] = count + 1
        self._of_connection[connection_id] = network
        return ""

    def leave(self, connection_id: int) -> None:
        """Forget a connection, if it was admitted."""
        network = self._of_connection.pop(connection_id, None)
        if network is not None:
            self._counts[network] -= 1
            if not self._counts[network]:
                del self._counts[network]


def _network_of(ip: str) -> str:
    """Return what stands for one peer: an IPv4 address, or the network of an IPv6 address."""
    return ipaddress.ip_address(ip).exploded[:_NETWORK_LENGTH] if ":" in ip else ip
