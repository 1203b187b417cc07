"""What a broker knows beside its log, and what of it outlives a crash: what its files say."""

from typing import TYPE_CHECKING

from tests.simulation.plan import DELAY_LEVELS

from reliable_mq.broker_core.config_texts import parse_delay_levels
from reliable_mq.broker_core.groups import PATH as GROUPS_PATH
from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.offsets import PATH as OFFSETS_PATH
from reliable_mq.broker_core.topics import PATH as TOPICS_PATH
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire import fastjson

if TYPE_CHECKING:
    from tests.simulation.model import Model


class Tables:
    """Topics with their numbers of queues, groups, committed offsets, and queue locks."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.saved_topics: set[str] = set()  # which no crash can take
        self.groups: set[str] = set()
        self.producers: set[int] = set()  # connections
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.resets: dict[tuple[str, str, int], int] = {}  # that no pull was told of
        # Two in one turn, of which a waiting pull was told of one: the next may be told of it too.
        self.doubtful: dict[tuple[str, str, int], int] = {}
        self.locks: dict[tuple[str, str, int], tuple[str, int, int | None]] = {}
        self.doubtful_locks: set[tuple[str, str, int]] = set()  # they may have expired

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note a commit; it does not count while a reset waits to be told."""
        if offset >= 0 and (group, topic, queue_id) not in self.resets:
            self.offsets[group, topic, queue_id] = offset

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note a reset."""
        self.offsets[group, topic, queue_id] = self.resets[group, topic, queue_id] = offset

    def ticked(self, now_ms: int) -> None:
        """Note the time: what is over now may be forgotten, and the clock be set back then."""
        self.doubtful_locks |= {key for key, lock in self.locks.items() if lock[1] <= now_ms}

    def disconnected(self, connection: int) -> None:
        """Free the locks that end with a connection."""
        self.producers.discard(connection)
        for key, (_, _, bound) in list(self.locks.items()):
            if bound == connection:
                del self.locks[key]

    def saved(self, disk: MemoryDisk) -> None:
        """Note what the broker is told to be saved."""
        self.saved_topics = set(_table(disk, TOPICS_PATH, "topicConfigTable"))

    def opened(self, disk: MemoryDisk, model: "Model") -> None:
        """Go on with what the files say. No offset may lie behind its queue's end."""
        topics = _table(disk, TOPICS_PATH, "topicConfigTable")
        self.topics = {name: int(topic["readQueueNums"]) for name, topic in topics.items()}
        self.saved_topics = set(topics)
        self.topics.setdefault(SCHEDULE_TOPIC, len(parse_delay_levels(DELAY_LEVELS)))
        self.groups = set(_table(disk, GROUPS_PATH, "subscriptionGroupTable"))
        self.offsets.clear()
        self.locks.clear()
        self.doubtful_locks.clear()
        self.resets.clear()
        self.doubtful.clear()
        self.producers.clear()
        for name, queues in _table(disk, OFFSETS_PATH, "offsetTable").items():
            topic, _, group = name.partition("@")
            for queue_id, offset in queues.items():
                end = model.shown_count(topic, int(queue_id))
                self.offsets[group, topic, int(queue_id)] = min(offset, end)


def _table(disk: MemoryDisk, path: str, name: str) -> dict[str, dict[str, int]]:
    text = disk.read_text(path)
    return fastjson.loads(text)[name] if text else {}
