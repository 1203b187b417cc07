"""Who reads which queue: every member of a group computes it alone and gets the same answer.

An allocation takes this member's id, all queues of a topic and all member ids, both sorted, and
returns this member's queues. All members of a group must use the same one: those of Apache's Java
client agree with these queue by queue. Source: Apache RocketMQ `AllocateMessageQueueAveragely`,
`…AveragelyByCircle`, `…ByMachineRoom`, `AllocateMachineRoomNearby`, `…ConsistentHash`, `…ByConfig`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from hashlib import md5

import msgspec

from reliable_mq.errors import ConfigurationError
from reliable_mq.message import MessageQueue

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
"""Gets this member, the queues and the members; pure, and the same function in every member."""


def allocate(
    allocation: Allocation,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """Return the queues that `client_id` reads.

    Queues are sorted by topic, broker and queue id, clients by id. A client that is not in the list
    gets none; a queue that is not in the list is given to nobody.

    Raises:
        ConfigurationError: when the allocation raises, so that no share is known.
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
    """Give each member a run of neighbouring queues; the first ones get one more."""
    share, extra = divmod(len(queues), len(members))
    index = members.index(client_id)
    start = index * share + min(index, extra)
    return queues[start : start + share + (index < extra)]


def circle(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> Sequence[MessageQueue]:
    """Deal the queues to the members in turn."""
    return queues[members.index(client_id) :: len(members)]


class MachineRoom(msgspec.Struct, frozen=True):
    """Shares the queues of brokers called `ROOM@NAME` whose room is one of `rooms`, and no others.

    `rooms` must be those of all members together, or the queues of some are read by nobody.
    """

    rooms: frozenset[str]

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Give each member a run; what is left over goes to the first ones, one each."""
        inside = [queue for queue in queues if _room_of(queue.broker_name) in self.rooms]
        share, extra = divmod(len(inside), len(members))
        index = members.index(client_id)
        run = inside[index * share : (index + 1) * share]
        return run + inside[share * len(members) :][index : index + 1] if index < extra else run


class MachineRoomNearby(msgspec.Struct, frozen=True):
    """Keeps queues in the room of their broker; those of a room without members all share.

    Attributes:
        room_of_broker: returns the room of a broker, by its name; never empty.
        room_of_member: returns the room of a member, by its client id; never empty.
        inside: how those share who share.

    Raises:
        ConfigurationError: when called, for a broker or a member whose room is not told.
    """

    room_of_broker: Callable[[str], str]
    room_of_member: Callable[[str], str]
    inside: Allocation = average

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Share the own room's queues, then those of each room that nobody is in."""
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
    """Moves few queues when members come and go, and shares less evenly for it.

    `virtual_nodes` is how many places each member has on the ring.
    """

    virtual_nodes: int = 10

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Give a queue to the member whose place is at its hash, or the next behind it."""
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
    """Reads just these queues, whoever else is there: somebody has shared them out by hand."""

    queues: tuple[MessageQueue, ...]

    def __call__(
        self,
        client_id: str,  # noqa: ARG002
        queues: Sequence[MessageQueue],
        members: Sequence[str],  # noqa: ARG002
    ) -> Sequence[MessageQueue]:
        """Return those of the given queues that the topic has."""
        return [queue for queue in self.queues if queue in queues]


def _room_of(broker_name: str) -> str | None:
    """Return ROOM of `ROOM@NAME`, as Java splits it: empty parts at the end are none."""
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


def _told(room: str, what: str, name: str) -> str:
    if not room:
        raise ConfigurationError(f"the machine room of {what} {name} is not told")
    return room


def _hash_of(queue: MessageQueue) -> int:
    return _hash_on_ring(
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
        f" queueId={queue.queue_id}]"
    )


def _hash_on_ring(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4])
