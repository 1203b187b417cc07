"""The copier: appends the records of a master's log to a slave's store, at the same places.

Receives whole records that are checked, and blanks. Appends their bytes as they are; the store
dispatches them like its own. So both logs have the same bytes, and both brokers the same queues.
Source: Apache RocketMQ `DefaultMessageStore.appendToCommitLog`, `ReputMessageService`.
"""

from reliable_mq.broker_core.dispatch import is_queued
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.errors import ReplicationError
from reliable_mq.wire.record_scan import RecordHead


class Copier:
    """Appends copies to a store that nobody else appends to."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def begin_at(self, offset: int) -> None:
        """Let an empty store begin at `offset` of the master's log: the begin of a segment."""
        self._store.begin_at(offset)

    def append(self, offset: int, data: bytes, head: RecordHead | None) -> None:
        """Append a record as it is; `head` None: the blank that ends a segment.

        A queue continues at the message of the record, if that begins a file of the queue: then
        the master has deleted the messages before it.

        Raises:
            ReplicationError: when messages of the queue are missing. Nothing was changed then.
        """
        store = self._store
        if head is None:
            store.log.add_blank(data)
            return
        if is_queued(head.sys_flag):
            self._join(head, offset)
        store.appender.append_copied(offset, data, head)

    def _join(self, head: RecordHead, offset: int) -> None:
        """Let the queue of a record end where its message begins."""
        store, key = self._store, (head.topic, head.queue_id)
        lane, number = store.appender.lane(*key), head.queue_offset
        if number == lane.next:
            return
        if not lane.next and key not in store.queues:  # its first message here
            lane.next = number
        elif number % store.units_of_file:
            raise ReplicationError(
                f"the record at offset {offset} is message {number} of queue {head.queue_id} of "
                f"topic {head.topic}; this slave has its messages up to {lane.next - 1}"
            )
        else:
            store.restart_queue(lane, number)
