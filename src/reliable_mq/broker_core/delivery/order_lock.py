"""Queue locks: one client of a group at a time handles a queue in order.

A lock belongs to a client id and lives a while after its last renewal, so that the queue of a
client that died is free again. A client that trusts its locks no longer than its connection may
say so; then the queue is free at once when the connection ends. (Apache's clients go on trusting
theirs, so for them only the time counts.) Source: Apache RocketMQ `RebalanceLockManager`.
"""

from collections.abc import Iterable

from reliable_mq.message import MessageQueue


class OrderLocks:
    """Invariant L2: a live lock has one owner."""

    def __init__(self, lifetime_ms: int) -> None:
        self._lifetime_ms = lifetime_ms
        self._locks: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        self._connections: dict[tuple[str, MessageQueue], int] = {}

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        now_ms: int,
        connection: int | None = None,
    ) -> list[MessageQueue]:
        """Take or renew locks; return the queues that the client holds now.

        With a `connection` they end with it.
        """
        held: list[MessageQueue] = []
        for queue in queues:
            owner, expires_ms = self._locks.get((group, queue), (client_id, 0))
            if owner == client_id or expires_ms <= now_ms:
                self._locks[group, queue] = (client_id, now_ms + self._lifetime_ms)
                held.append(queue)
                if connection is None:
                    self._connections.pop((group, queue), None)
                else:
                    self._connections[group, queue] = connection
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those of others stay."""
        for queue in queues:
            owner, _ = self._locks.get((group, queue), ("", 0))
            if owner == client_id:
                del self._locks[group, queue]
                self._connections.pop((group, queue), None)

    def disconnect(self, connection: int) -> None:
        """Free the queues that were locked until this connection ends."""
        for key in [key for key, bound in self._connections.items() if bound == connection]:
            del self._connections[key]
            del self._locks[key]
