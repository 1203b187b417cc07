"""The topics of a broker, and their file `config/topics.json`.

Source: Apache RocketMQ `TopicConfigManager`, `TopicConfig`.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from reliable_mq.broker_core.json_rows import JsonRows, differences, plain_json
from reliable_mq.broker_core.names import (
    DEFAULT_TOPIC,
    EVENT_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_system_topic,
    reply_topic,
    revive_topic,
)
from reliable_mq.broker_core.store.disk import RowsText
from reliable_mq.broker_core.store.lanes import Lane
from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import TABLE_SIZE_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.java_int import I32, I64
from reliable_mq.wire.long_frame import LongBody

PATH = "config/topics.json"
_WRITER = "reliable_mq"  # Apache's broker drops this field when it writes the file
# How our releases before the writer field began the file. Apache's broker breaks that line.
_LAYOUT = '{\n\t"dataVersion":{"'

_TAIL = b',"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}'

INHERIT = 1
WRITE = 2
READ = 4


class TopicConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """One topic: queue counts and permissions (`perm`: READ | WRITE | INHERIT)."""

    topic_name: str
    read_queue_nums: I32 = 8
    write_queue_nums: I32 = 8
    perm: I32 = READ | WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def queue_count(self) -> int:
        """The number of queues: the larger of the two counts."""
        return max(self.read_queue_nums, self.write_queue_nums)

    def __str__(self) -> str:
        """Return the topic as Apache's remarks write it (`TopicConfig.toString`)."""
        perm = "".join(
            letter if self.perm & bit else "-"
            for letter, bit in (("R", READ), ("W", WRITE), ("X", INHERIT))
        )
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes.items())
        return (
            f"TopicConfig [topicName={self.topic_name}, readQueueNums={self.read_queue_nums}, "
            f"writeQueueNums={self.write_queue_nums}, perm={perm}, "
            f"topicFilterType={self.topic_filter_type}, topicSysFlag={self.topic_sys_flag}, "
            f"order={str(self.order).lower()}, attributes={{{attributes}}}]"
        )


@decodable
class DataVersion(msgspec.Struct, kw_only=True, rename="camel"):
    """The version of a table; a name server sees from it whether the table changed."""

    counter: I64 = 0
    state_version: I64 = 0
    timestamp: I64 = 0

    def advance(self, now_ms: int) -> None:
        """Note a change."""
        self.timestamp = now_ms
        self.counter += 1


class TopicTable:
    """Topics by name. `version` advances with each change.

    Invariant T1: a topic is kept under its own name, and has no negative number of queues.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, TopicConfig] = {}  # others only read it
        self._rows = JsonRows()
        self._own: frozenset[str] = frozenset()
        self.version = DataVersion()
        self.is_ours = False  # whether this broker wrote the file last
        # Queues, by topic and number, that accept any plain message without further checks. Empty
        # after each change of an existing topic.
        self.plain_lanes: dict[tuple[str, int], Lane] = {}
        # The same by topic, and by the number of the queue as it stands in a frame.
        self.lanes_by_text: dict[str, dict[bytes, Lane]] = {}

    def invariants(self) -> None:
        """T1; see the class."""
        self._rows.check(self.by_name)
        for name, topic in self.by_name.items():
            if topic.topic_name != name:
                raise InvariantBroken(f"T1: topic {topic.topic_name!r} is kept as {name!r}")
            if min(topic.read_queue_nums, topic.write_queue_nums) < 0:
                raise InvariantBroken(f"T1: topic {name!r} has a negative number of queues")

    def create_system_topics(
        self,
        cluster: str,
        broker: str,
        *,
        auto_create: bool,
        queues: int,
        levels: int,
        trace_topic: str = "",
    ) -> None:
        """Add the topics that every broker has; existing topics are not changed.

        Args:
            cluster: its name.
            broker: its name.
            auto_create: whether to add the template from which a first send creates a topic.
            queues: number of queues of the template.
            levels: number of delay levels.
            trace_topic: topic of message traces. Default empty: none is added.
        """
        system = [
            TopicConfig(topic_name="SELF_TEST_TOPIC", read_queue_nums=1, write_queue_nums=1),
            TopicConfig(topic_name=cluster, read_queue_nums=16, write_queue_nums=16, perm=7),
            TopicConfig(topic_name=broker, read_queue_nums=1, write_queue_nums=1, perm=7),
            *(
                TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
                for name in (
                    *(EVENT_TOPIC, HALF_TOPIC, OP_TOPIC),
                    reply_topic(cluster),
                )
            ),
            TopicConfig(topic_name=SCHEDULE_TOPIC, read_queue_nums=levels, write_queue_nums=levels),
            TopicConfig(topic_name=TIMER_TOPIC, read_queue_nums=1, write_queue_nums=1),
        ]
        # This broker does not use these topics; tools and other brokers expect them in the list.
        system += [
            TopicConfig(
                topic_name=f"RMQ_SYS_ROCKSDB_TRANS_{kind}HALF_TOPIC",
                read_queue_nums=1,
                write_queue_nums=1,
            )
            for kind in ("", "OP_")
        ]
        system += [
            TopicConfig(topic_name="BenchmarkTest", read_queue_nums=1024, write_queue_nums=1024),
            TopicConfig(topic_name=revive_topic(cluster)),
            TopicConfig(
                topic_name=f"rmq_sys_SYNC_BROKER_MEMBER_{broker}",
                perm=INHERIT,
                read_queue_nums=1,
                write_queue_nums=1,
            ),
        ]
        if trace_topic:
            system.append(
                TopicConfig(topic_name=trace_topic, read_queue_nums=1, write_queue_nums=1)
            )
        if auto_create:
            system.append(
                TopicConfig(
                    topic_name=DEFAULT_TOPIC,
                    read_queue_nums=queues,
                    write_queue_nums=queues,
                    perm=READ | WRITE | INHERIT,
                )
            )
        for topic in system:
            if topic.topic_name not in self.by_name:
                self._set(topic)
        self._own = frozenset(topic.topic_name for topic in system)

    def allow_creation(self, *, auto_create: bool, queues: int, now_ms: int) -> None:
        """Set whether a first send creates a topic from the template."""
        template = self.by_name.get(DEFAULT_TOPIC)
        if template is None:
            template = TopicConfig(
                topic_name=DEFAULT_TOPIC, read_queue_nums=queues, write_queue_nums=queues
            )
        perm = READ | WRITE | (INHERIT if auto_create else 0)
        self.set_topic(msgspec.structs.replace(template, perm=perm), now_ms)

    def is_system(self, name: str) -> bool:
        """Whether this is the broker's own topic, which clients may not create or delete."""
        return name in self._own or is_system_topic(name)

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def size(self) -> int:
        """Characters of JSON of all topics together."""
        return self._rows.size

    @property
    def is_overfull(self) -> bool:
        """Whether retry topics, which are created without limit, have doubled the allowed size.

        Then no new group is created, because its retry topic would follow.
        """
        return self._rows.size >= 2 * TABLE_SIZE_MAX

    def has_room(self, topic: TopicConfig) -> bool:
        """Whether a request may add or replace this topic; see `JsonRows.has_room`."""
        return self._rows.has_room(topic.topic_name, topic)

    def broker_topics(self) -> frozenset[str]:
        """Return the topics that the broker created for itself."""
        return self._own

    def get(self, name: str) -> TopicConfig | None:
        """Return the topic, or None."""
        return self.by_name.get(name)

    def set_topic(self, topic: TopicConfig, now_ms: int) -> None:
        """Add or replace a topic."""
        self._set(topic)
        self.version.advance(now_ms)

    def _set(self, topic: TopicConfig) -> None:
        name = topic.topic_name
        self._rows.set(name, topic)  # first: it raises for text that JSON cannot hold
        if name in self.by_name:
            self.forget_lanes()
        self.by_name[name] = topic

    def remove(self, name: str, now_ms: int) -> bool:
        """Remove a topic; return whether it existed."""
        removed = self.by_name.pop(name, None)
        self.forget_lanes()
        if removed:
            self._rows.remove(name)
            self.version.advance(now_ms)
        return removed is not None

    def forget_lanes(self) -> None:
        """Have all queues examined again before they accept messages without further checks."""
        self.plain_lanes.clear()
        self.lanes_by_text.clear()

    def all(self) -> dict[str, TopicConfig]:
        """Return the topics by name."""
        return dict(self.by_name)

    def from_default(self, name: str, default_name: str, queues: int) -> TopicConfig | None:
        """Return a new topic as a copy of a template. None: the template does not allow it.

        It has the requested number of queues, but at most that of the template.
        """
        default = self.by_name.get(default_name)
        if default is None or not default.perm & INHERIT:
            return None
        count = max(0, min(queues, default.write_queue_nums))
        return TopicConfig(
            topic_name=name,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=default.perm & ~INHERIT,
            topic_sys_flag=default.topic_sys_flag,
            topic_filter_type=default.topic_filter_type,
        )

    def wrapped(self, names: Iterable[str] | None = None, part: int = 0) -> bytes:
        """Return the topics in the format for other servers.

        Args:
            names: the topics; None, the default, for all. Unknown names are skipped.
            part: number of the part of a split registration; each part has its own version.
        """
        return self._head(part) + self._rows.table(names).encode() + _TAIL

    def long_wrapped(self) -> LongBody:
        """Return all topics in the same format, as pieces that are made later."""
        return self._rows.long_table(self._head(), _TAIL)

    def _head(self, part: int = 0) -> bytes:
        version = msgspec.structs.replace(self.version, timestamp=self.version.timestamp + part)
        return (
            f'{{"dataVersion":{plain_json(version)},'
            '"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":0},'
            '"topicConfigTable":'
        ).encode()

    def parts(self, names: Iterable[str] | None, size_max: int) -> Iterator[list[str]]:
        """Yield the names of all topics, or of `names`, in parts; see `JsonRows.parts`."""
        return self._rows.parts(names, size_max)

    def page(self, begin: int, count: int) -> Sequence[str]:
        """Return the names of `count` topics from index `begin` on, sorted."""
        return self._rows.names()[begin : begin + count]

    def dump(self) -> RowsText:
        """Return the content of the file."""
        head = (
            f'{{\n\t"dataVersion":{plain_json(self.version)},'
            f'\n\t"writer":"{_WRITER}",'
            '\n\t"topicConfigTable":'
        )
        return self._rows.indented(head, "\n}")

    def load(self, text: str) -> None:
        """Load the topics from the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        file = fastjson.decode(text, _File)
        for name, topic in file.topic_config_table.items():
            topic.topic_name = name
            self._set(topic)
        self.version = file.data_version
        self.is_ours = file.writer == _WRITER or text.startswith(_LAYOUT)

    def take_over(self, text: str) -> tuple[list[str], list[str]]:
        """Take over the topics of a master's table; return what is gone, and what has changed.

        The caller removes what is gone. Topics of this broker's own stay.

        Raises:
            ValueError: when the text is no such table. Nothing was changed then.
        """
        file = fastjson.decode(text, _File)
        topics = {
            name: msgspec.structs.replace(topic, topic_name=name)
            for name, topic in file.topic_config_table.items()
        }
        changed, gone = differences(self.by_name, topics)
        for name in changed:
            self._set(topics[name])
        self.version = file.data_version
        return [name for name in gone if name not in self._own], changed


@decodable
class _File(msgspec.Struct, rename="camel"):
    writer: str = ""
    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
