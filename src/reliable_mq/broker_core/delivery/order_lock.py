"""Queue locks: one client of a group at a time handles a queue in order.

A lock belongs to a client id and lives a while after its last renewal, so that the queue of a
client that died is free again. Source: Apache RocketMQ `RebalanceLockManager`.
"""

from collections.abc import Iterable

from reliable_mq.message import MessageQueue


class OrderLocks:
    """Invariant L2: a live lock has one owner."""

    def __init__(self, lifetime_ms: int) -> None:
        self._lifetime_ms = lifetime_ms
        self._locks: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Take or renew locks; return the queues that the client holds now."""
        held: list[MessageQueue] = []
        for queue in queues:
            owner, expires_ms = self._locks.get((group, queue), (client_id, 0))
            if owner == client_id or expires_ms <= now_ms:
                self._locks[group, queue] = (client_id, now_ms + self._lifetime_ms)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those of others stay."""
        for queue in queues:
            owner, _ = self._locks.get((group, queue), ("", 0))
            if owner == client_id:
                del self._locks[group, queue]
