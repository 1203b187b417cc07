"""The copier: appends the records of a master's log to a slave's store, at the same places.

Receives whole records that are checked, and blanks. Appends their bytes as they are; the store
dispatches them like its own. So both logs have the same bytes, and both brokers the same queues.
Source: Apache RocketMQ `DefaultMessageStore.appendToCommitLog`, `ReputMessageService`.
"""

from collections.abc import Sequence

from reliable_mq.broker_core.store.lanes import Lane
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.errors import ReplicationError
from reliable_mq.wire.record_scan import SizedHead


class Copier:
    """Appends copies to a store that nobody else appends to."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def begin_at(self, offset: int) -> None:
        """Let an empty store begin at `offset` of the master's log: the begin of a segment."""
        self._store.begin_at(offset)

    def append(self, offset: int, data: bytes, heads: Sequence[SizedHead]) -> None:
        """Append records as they are; without `heads`: the blank that ends a segment.

        A queue continues at the message of a record, if that begins a file of the queue: then
        the master has deleted the messages before it.

        Raises:
            ReplicationError: when messages of the queue of a record are missing. Only the records
                before it were appended then.
        """
        if heads:
            self._store.appender.append_copied(offset, data, heads, self._join)
        else:
            self._store.log.add_blank(data)

    def _join(self, lane: Lane, number: int, offset: int) -> None:
        """Let the queue of a record end where its message begins."""
        store = self._store
        if not lane.next and (lane.topic, lane.queue_id) not in store.queues:
            lane.next = number  # its first message here
        elif number % store.units_of_file:
            raise ReplicationError(
                f"the record at offset {offset} is message {number} of queue {lane.queue_id} of "
                f"topic {lane.topic}; this slave has its messages up to {lane.next - 1}"
            )
        else:
            store.restart_queue(lane, number)
