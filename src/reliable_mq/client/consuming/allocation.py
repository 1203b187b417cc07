"""Allocations: they share a topic's queues among a group's members.

Every member computes the allocation alone, and all get the same result. An allocation receives this
member's id, all queues of a topic and all member ids, both sorted. It returns this member's queues.
All members of a group must use the same one. Apache's Java clients compute the same shares.
Source: Apache RocketMQ `AllocateMessageQueueAveragely`, `…AveragelyByCircle`, `…ByMachineRoom`,
`AllocateMachineRoomNearby`, `…ConsistentHash`, `…ByConfig`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from hashlib import md5

import msgspec

from reliable_mq.errors import ConfigurationError
from reliable_mq.message import MessageQueue

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
"""Gets this member, the queues and the members. Pure, and the same function in every member."""


def allocate(
    allocation: Allocation,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """Return the queues that `client_id` reads.

    Queues are sorted by topic, broker and queue id, clients by id. A client that is not in the list
    gets no queue. A returned queue that is not in the list is ignored.

    Raises:
        ConfigurationError: when the allocation raises, so that the share is unknown.
    """
    members = sorted(set(client_ids))
    ordered = sorted(queues)
    if client_id not in members:
        return []
    try:
        share = list(allocation(client_id, ordered, members))
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{allocation!r} cannot share the queues: {error!r}") from error
    there = set(ordered)
    return [queue for queue in share if queue in there]


def average(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> Sequence[MessageQueue]:
    """Give each member a range of neighbouring queues. The first members may get one more."""
    share, extra = divmod(len(queues), len(members))
    index = members.index(client_id)
    start = index * share + min(index, extra)
    return queues[start : start + share + (index < extra)]


def circle(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> Sequence[MessageQueue]:
    """Give the queues to the members round-robin."""
    return queues[members.index(client_id) :: len(members)]


class MachineRoom(msgspec.Struct, frozen=True):
    """Shares only queues of brokers named `ROOM@NAME` with a room in `rooms`.

    `rooms` must have the rooms of all members. Otherwise some queues have no reader.
    """

    rooms: frozenset[str]

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Give each member a range of queues. The first members get one of the rest each."""
        inside = [queue for queue in queues if _room_of(queue.broker_name) in self.rooms]
        share, extra = divmod(len(inside), len(members))
        index = members.index(client_id)
        run = inside[index * share : (index + 1) * share]
        return run + inside[share * len(members) :][index : index + 1] if index < extra else run


class MachineRoomNearby(msgspec.Struct, frozen=True):
    """Gives queues to members in their broker's room. All members share the queues of empty rooms.

    Attributes:
        room_of_broker: returns the room of a broker name; never empty.
        room_of_member: returns the room of a client id; never empty.
        inside: the allocation among the members that share.

    Raises:
        ConfigurationError: when called, for a broker or a member without a room.
    """

    room_of_broker: Callable[[str], str]
    room_of_member: Callable[[str], str]
    inside: Allocation = average

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Share the queues of this member's room, and then those of each room without members."""
        rooms: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = _told(self.room_of_broker(queue.broker_name), "broker", queue.broker_name)
            rooms.setdefault(room, []).append(queue)
        peopled: dict[str, list[str]] = {}
        for member in members:
            room = _told(self.room_of_member(member), "member", member)
            peopled.setdefault(room, []).append(member)
        own = next(room for room, inmates in peopled.items() if client_id in inmates)
        share: list[MessageQueue] = []
        if near := rooms.pop(own, None):
            share += self.inside(client_id, near, peopled[own])
        for room in sorted(rooms.keys() - peopled.keys()):
            share += self.inside(client_id, rooms[room], members)
        return share


class ConsistentHash(msgspec.Struct, frozen=True):
    """Moves few queues when members join or leave, but shares them less evenly.

    `virtual_nodes` is the number of points that each member has on the hash ring.
    """

    virtual_nodes: int = 10

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Give a queue to the member whose point is the first one at or after the queue's hash."""
        ring = {
            _hash_on_ring(f"{member}-{replica}"): member
            for member in members
            for replica in range(self.virtual_nodes)
        }
        places = sorted(ring)
        return [
            queue
            for queue in queues
            if ring[places[bisect_left(places, _hash_of(queue)) % len(places)]] == client_id
        ]


class Configured(msgspec.Struct, frozen=True):
    """Reads exactly these queues, whatever members exist: an operator has shared them manually."""

    queues: tuple[MessageQueue, ...]

    def __call__(
        self,
        client_id: str,  # noqa: ARG002
        queues: Sequence[MessageQueue],
        members: Sequence[str],  # noqa: ARG002
    ) -> Sequence[MessageQueue]:
        """Return the configured queues that the topic has."""
        return [queue for queue in self.queues if queue in queues]


def _room_of(broker_name: str) -> str | None:
    """Return ROOM of `ROOM@NAME`, as Java splits it: empty parts at the end do not count."""
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


def _told(room: str, what: str, name: str) -> str:
    if not room:
        raise ConfigurationError(f"the machine room of {what} {name} is unknown")
    return room


def _hash_of(queue: MessageQueue) -> int:
    return _hash_on_ring(
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
        f" queueId={queue.queue_id}]"
    )


def _hash_on_ring(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4])
