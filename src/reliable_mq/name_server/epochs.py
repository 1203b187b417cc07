"""The epochs of broker names: each promotion of a slave to the master has a higher one.

Receives the registration of a broker, and that of another one with the same name and id. Refuses a
former master, and a second broker beside a living one. Brokers of Apache have no epoch: if neither
side has one, the newer registration replaces the older one, as at Apache's name server.
"""

from reliable_mq.errors import ProtocolError
from reliable_mq.name_server.route_rows import MASTER
from reliable_mq.wire.headers import RegisterBrokerHeader


class SecondMaster(ProtocolError):
    """Another broker has the name and the id of this one."""


class Epochs:
    """The highest known epoch of each broker name, also while none of its brokers is known.

    Invariant N4: a broker with a lower epoch than the highest known one is never the master.

    Args:
        most: names that are remembered; then the oldest is forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._newest: dict[str, int] = {}

    def check(self, header: RegisterBrokerHeader, other: RegisterBrokerHeader | None) -> None:
        """Note the epoch of a broker that registers.

        Args:
            header: its registration.
            other: the living broker that has its name and id: another one, or itself, or None.

        Raises:
            SecondMaster: when it must not be registered.
        """
        name, address, epoch = header.broker_name, header.broker_addr, header.broker_epoch
        if other is not None and other.broker_addr == address:
            other = None
        if header.broker_id == MASTER and epoch is not None:
            newest = self._newest.get(name, 0)
            if epoch < newest:
                where = f" of {other.broker_addr}" if other is not None else ""
                raise SecondMaster(
                    f"{address} is a former master of {name}: it has epoch {epoch}, and epoch "
                    f"{newest}{where} is known"
                )
            if epoch > newest:
                self._note(name, epoch)
                return
        if other is not None and (epoch is not None or other.broker_epoch is not None):
            raise SecondMaster(
                f"broker id {header.broker_id} of {name} is taken by {other.broker_addr}; {address}"
                " must not have it, too"
            )

    def _note(self, name: str, epoch: int) -> None:
        self._newest.pop(name, None)
        while len(self._newest) >= self._most:
            del self._newest[next(iter(self._newest))]
        self._newest[name] = epoch
