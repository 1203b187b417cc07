"""Find the records of a store's log that consumers can still read, by queues and settings.

Receives the path of a store and facts about its queues from `file_store`. Returns the log offset
from which a queue lists its messages. Earlier records of the queue are in the log, but no consumer
can pull them: their topic was deleted. Files are opened for reading only.

Apache's broker removes the queues of a deleted topic. The bundled broker keeps them, and removes
the topic from its settings. Source: Apache RocketMQ `DefaultMessageStore.cleanUnusedTopic`.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from reliable_mq.reconcile.brokers.file_queues import QUEUES, TOPICS, with_copy
from reliable_mq.reconcile.brokers.offset_table import topic_names

Listed = tuple[str, int, int]
"""Topic, queue id, and the log offset of the first record that the queue lists."""


class Listing:
    """Finds the log offset from which a queue lists its messages.

    It reads each queue once. Workers make one `Listing` for each partition.

    Args:
        store: the store directory.
        sure_end: the log offset up to which the queues list all records.
        is_ours: whether the bundled broker was the last to write the store.
        late: queues that begin with their first unit, so that earlier records may be unlisted.
            Default: none.
    """

    def __init__(
        self, store: Path, sure_end: int, *, is_ours: bool, late: Iterable[Listed] = ()
    ) -> None:
        self._store, self._sure_end, self._is_ours = store, sure_end, is_ours
        self._known = {(topic, queue_id): offset for topic, queue_id, offset in late}
        self._asked: dict[tuple[str, int], int] = {}
        self._topics: frozenset[str] | None = None
        self._is_read = False

    def __call__(self, topic: str, queue_id: int) -> int:
        """Return the log offset from which the queue lists its records."""
        queue = (topic, queue_id)
        if queue not in self._asked:
            is_there = self._has_topic(topic) if self._is_ours else self._has_queue(topic, queue_id)
            self._asked[queue] = self._known.get(queue, 0) if is_there else self._sure_end
        return self._asked[queue]

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        return (self._store / QUEUES / topic / str(queue_id)).is_dir()

    def _has_topic(self, topic: str) -> bool:
        if not self._is_read:
            self._is_read = True
            for path in with_copy(str(self._store), TOPICS):
                with suppress(OSError, ValueError):
                    self._topics = topic_names(path.read_bytes())
                    break
        return self._topics is None or topic in self._topics  # None: unknown, without settings
