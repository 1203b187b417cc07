"""Queue locks: only one client of a group at a time consumes a queue in order.

A lock belongs to a client id and expires some time after its last renewal, so that a crashed client
frees its queues. A client may ask for locks that end with its connection, if it no longer trusts
them then; so its queues are free at once. (Apache's clients trust a lock until it expires,
so for them only the time counts.) Source: Apache RocketMQ `RebalanceLockManager`.
"""

from collections.abc import Iterable

import msgspec

from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import LOCKS_MAX
from reliable_mq.message import MessageQueue


class _Lock(msgspec.Struct):
    client_id: str
    expires_ms: int
    connection: int | None  # the lock ends with this connection; None: with its time only


class OrderLocks:
    """The owners of queue locks.

    Invariant L2: a live lock has one owner, and ends with the connection that it is bound to.
    Invariant L9: there are `_count` locks, at most LOCKS_MAX.
    """

    def __init__(self, lifetime_ms: int) -> None:
        self._count = 0
        self._lifetime_ms = lifetime_ms
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._bound: dict[int, set[tuple[str, MessageQueue]]] = {}  # by connection

    def invariants(self) -> None:
        """L2 and L9; see the class."""
        if not sum(map(len, self._locks.values())) == self._count <= LOCKS_MAX:
            raise InvariantBroken(f"L9: {self._count} locks are counted")
        bound = {
            (group, queue): lock.connection
            for group, locks in self._locks.items()
            for queue, lock in locks.items()
            if lock.connection is not None
        }
        listed = {key: connection for connection, keys in self._bound.items() for key in keys}
        if bound != listed:
            raise InvariantBroken(f"L2: {bound} are bound to connections, {listed} are listed")

    def change_lifetime(self, lifetime_ms: int) -> None:
        """Set the lifetime of locks; it applies from the next renewal."""
        self._lifetime_ms = lifetime_ms

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        now_ms: int,
        connection: int | None = None,
    ) -> list[MessageQueue]:
        """Take or renew locks; return the queues that the client holds now.

        With a `connection` the locks end when it closes. At LOCKS_MAX no new lock is granted.
        """
        locks = self._locks.get(group, {})
        held: list[MessageQueue] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None and self._count >= LOCKS_MAX:
                continue
            if lock is None or lock.client_id == client_id or lock.expires_ms <= now_ms:
                self._free(group, queue)
                self._take(group, queue, _Lock(client_id, now_ms + self._lifetime_ms, connection))
                locks = self._locks[group]
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release locks; locks of other clients are not affected."""
        for queue in queues:
            lock = self._locks.get(group, {}).get(queue)
            if lock is not None and lock.client_id == client_id:
                self._free(group, queue)

    def is_any_live(self, group: str, now_ms: int) -> bool:
        """Whether any client of the group holds a lock, so that the group consumes in order."""
        return any(lock.expires_ms > now_ms for lock in self._locks.get(group, {}).values())

    def disconnect(self, connection: int) -> None:
        """Release the locks that are bound to this connection."""
        for group, queue in list(self._bound.get(connection, ())):
            self._free(group, queue)

    def expire(self, now_ms: int) -> None:
        """Remove expired locks."""
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, lock in locks.items() if lock.expires_ms <= now_ms]:
                self._free(group, queue)

    def _take(self, group: str, queue: MessageQueue, lock: _Lock) -> None:
        self._locks.setdefault(group, {})[queue] = lock
        self._count += 1
        if lock.connection is not None:
            self._bound.setdefault(lock.connection, set()).add((group, queue))

    def _free(self, group: str, queue: MessageQueue) -> None:
        locks = self._locks.get(group, {})
        lock = locks.pop(queue, None)
        if lock is None:
            return
        self._count -= 1
        if not locks:
            del self._locks[group]
        if lock.connection is not None:
            bound = self._bound[lock.connection]
            bound.discard((group, queue))
            if not bound:
                del self._bound[lock.connection]
