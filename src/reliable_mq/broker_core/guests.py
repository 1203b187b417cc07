"""Consumers behind an endpoint of this process: tools see them, and may ask them something.

They share no queues: they get messages one by one. So they are in no list by which members of a
group share queues, and a reset of offsets needs nobody's help.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from reliable_mq.broker_core.clients import ConsumerData, RegisteredGroup, RegisteredMember
from reliable_mq.errors import InvariantBroken


class _Guest(NamedTuple):
    member: RegisteredMember
    says: Callable[[], ConsumerData]


class Guests:
    """All of them, by group, and by client id, user and address.

    Invariant: no group is empty. What they may take is limited where they are admitted.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, str, str], _Guest]] = {}

    def join(self, group: str, member: RegisteredMember, says: Callable[[], ConsumerData]) -> None:
        """Note a consumer.

        Args:
            group: its group.
            member: with the connection of its endpoint.
            says: returns what it says of its group. It is kept where the consumer is, and not here.
        """
        guests = self._groups.setdefault(group, {})
        key = (member.client_id, member.user, member.address)
        guests.pop(key, None)
        guests[key] = _Guest(member, says)

    def leave(self, group: str, client_id: str, user: str, address: str) -> None:
        """Forget a consumer."""
        guests = self._groups.get(group, {})
        guests.pop((client_id, user, address), None)
        if not guests:
            self._groups.pop(group, None)

    def forget(self, connection: int) -> None:
        """Forget all consumers of an endpoint."""
        for name, guests in list(self._groups.items()):
            for key in [
                key for key, each in guests.items() if each.member.connection == connection
            ]:
                self.leave(name, *key)

    def members_of(self, group: str) -> Iterator[RegisteredMember]:
        """Yield the consumers of a group."""
        for each in self._groups.get(group, {}).values():
            yield each.member

    def group(self, name: str) -> RegisteredGroup | None:
        """Return what the newest consumer says of a group, without members; None: it has none."""
        guests = self._groups.get(name)
        if not guests:
            return None
        made = RegisteredGroup(name=name)
        made.update(guests[next(reversed(guests))].says(), keeps_subscriptions=False)
        return made

    def invariants(self) -> None:
        """Check that no group is empty.

        Raises:
            InvariantBroken: when one is.
        """
        if not all(self._groups.values()):
            raise InvariantBroken("a group without guests is kept")
