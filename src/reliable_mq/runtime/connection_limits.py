"""How many connections a listener keeps open, in all and of one address, and takes a second. Pure.

It receives addresses and the time, and says why a new connection is refused.
"""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import MutableMapping
from typing import Annotated, Final, TypeVar

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import ConfigurationError
from reliable_mq.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_OF_ADDRESS_MAX,
    FRAME_SIZE_MAX,
    NEW_CONNECTIONS_OF_ADDRESS_MAX,
    RECEIVED_SIZE_MAX,
    UNSENT_SIZE_MAX,
)
from reliable_mq.wire.java_int import I32_MAX

_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Limits = TypeVar("_Limits", bound=msgspec.Struct)
_Rate = Annotated[int, msgspec.Meta(ge=0, le=I32_MAX)]
_Size = Annotated[int, msgspec.Meta(ge=4 * FRAME_SIZE_MAX, le=I32_MAX)]  # for many peers
_NETWORK_LENGTH = len("2001:0db8:0000:0000")  # one subscriber has a whole IPv6 network of 64 bits
_NETWORKS_MAX = 10_000  # whose new connections are counted; above, the one that is quiet longest is
# forgotten: it has its whole bucket again
_SAVED_SECONDS = 10.0
_ROUNDING = 1e-9

# Which limit refused a connection, as a metric has it.
ALL: Final = "all"
ADDRESS: Final = "address"
RATE: Final = "rate"
CONNECTION_LIMITS = (ALL, ADDRESS, RATE)


@decodable
class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a listener; sizes in bytes, for all connections together.

    Attributes:
        connections: open connections.
        of_address: open connections of one address, or of one IPv6 network of 64 bits.
        new_of_address: new connections of one address or network in a second; 0: no limit. What was
            not used is saved up for ten seconds: many clients may start at once.
        received_size: incomplete frames and requests that wait.
        unsent_size: answers that were not read.
    """

    connections: _Count = msgspec.field(default=CONNECTIONS_MAX, name="maxConnections")
    of_address: _Count = msgspec.field(
        default=CONNECTIONS_OF_ADDRESS_MAX, name="maxConnectionsOfAddress"
    )
    new_of_address: _Rate = msgspec.field(
        default=NEW_CONNECTIONS_OF_ADDRESS_MAX, name="maxNewConnectionsPerSecondOfAddress"
    )
    received_size: _Size = msgspec.field(default=RECEIVED_SIZE_MAX, name="maxReceivedBytes")
    unsent_size: _Size = msgspec.field(default=UNSENT_SIZE_MAX, name="maxUnsentBytes")


def take_limits(properties: MutableMapping[str, str]) -> ConnectionLimits:
    """Remove the limits of connections from `properties`, and return them; see `taken`."""
    return taken(properties, ConnectionLimits, "a limit of connections")


def taken(properties: MutableMapping[str, str], kind: type[_Limits], what: str) -> _Limits:
    """Remove the properties of some limits from `properties`, and return what they say.

    Raises:
        ConfigurationError: when a value is not a number in its range.
    """
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    values = {name: properties.pop(name) for name in names & properties.keys()}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{what}: {error}") from error


class Admission:
    """Counts open connections, and new ones.

    Invariant X4: the counts of all addresses are the connections that were admitted and have not
    left.

    New connections have a token bucket of ten seconds. Of each network it keeps the time at which
    its bucket is full again; each connection moves that time by 1 / rate.

    Args:
        limits: the limits; they may change. A lower one closes nothing that is open.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.refused: Counter[str] = Counter(dict.fromkeys(CONNECTION_LIMITS, 0))
        self._of_connection: dict[int, str] = {}  # the network of each, by id
        self._counts: Counter[str] = Counter()
        self._full_at: OrderedDict[str, float] = OrderedDict()  # by network, quiet longest first

    def arrive(self, ip: str, now: float) -> str:
        """Count a new connection. Return why it is refused; "": its address may have one more.

        Args:
            ip: the address, without its zone.
            now: in seconds, by a clock that is never set.
        """
        rate = self.limits.new_of_address
        if not rate:
            return ""
        network = _network_of(ip)
        full_at = max(self._full_at.get(network, now), now)
        is_hasty = full_at + 1 / rate > now + _SAVED_SECONDS + _ROUNDING
        self._full_at[network] = full_at if is_hasty else full_at + 1 / rate
        self._full_at.move_to_end(network)
        if len(self._full_at) > _NETWORKS_MAX:
            self._full_at.popitem(last=False)
        if not is_hasty:
            return ""
        self.refused[RATE] += 1
        return f"more than {rate} new ones a second (maxNewConnectionsPerSecondOfAddress)"

    def admit(self, connection_id: int, ip: str) -> str:
        """Count a connection. Return why it is refused and not counted; "": it is not."""
        network = _network_of(ip)
        if len(self._of_connection) >= self.limits.connections:
            self.refused[ALL] += 1
            return f"{self.limits.connections} connections are open (maxConnections)"
        count = self._counts[network]
        if count >= self.limits.of_address:
            self.refused[ADDRESS] += 1
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
