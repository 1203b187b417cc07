"""What reconciliation asks a running cluster, and what the answers mean.

Pure: values in, commands out; answers in, values out. Written against the protocol alone, not with
the client's code, which it audits. Nothing that is asked here changes anything: the group is the
one that brokers keep for tools, nothing is committed, and no pull waits.

Source: Apache RocketMQ `ClusterInfo`, `TopicConfigSerializeWrapper`, `TopicStatsTable`,
`PullMessageProcessor`, `MQAdminImpl`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from reliable_mq.errors import ProtocolError, RemoteError
from reliable_mq.reconcile.brokers.log_roles import (
    DEAD_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_special,
)
from reliable_mq.reconcile.brokers.offset_table import Progress, committed_offsets, group_names
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import PullMessageHeader, PullResultHeader, SearchOffsetHeader
from reliable_mq.wire.java_properties import parse_properties

READER = "TOOLS_CONSUMER"
"""A consumer group that every broker knows without being told."""

_SUBSCRIPTION = 0x4  # the pull says itself what it wants, because no heartbeat did
_PULL_COUNT = 1_024  # brokers give fewer, each by its own settings
_MASTER_ID = 0
_READABLE = 4
_LEVELS = "messageDelayLevel"
# Java's MessageFormat sets commas into large numbers.
_UPTIME = re.compile(r"([\d,]+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")
_UPTIME_SECONDS = (86_400, 3_600, 60, 1)


class BrokerAddress(NamedTuple):
    """A broker of a cluster: its name, and where it is read."""

    name: str
    address: str


class QueueRange(NamedTuple):
    """The offsets of a queue that a broker holds, the end excluded."""

    queue_id: int
    begin: int
    end: int


def ask_brokers() -> Command:
    """Return the question to a name server which brokers there are."""
    return request(RequestCode.GET_BROKER_CLUSTER_INFO)


def brokers_in(answer: Command) -> list[BrokerAddress]:
    """Return the brokers, sorted: of each name the master, or else a slave.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    table = _table(answer, "brokerAddrTable")
    try:
        found = []
        for name, data in table.items():
            known = {int(number): str(address) for number, address in data["brokerAddrs"].items()}
            if known:
                found.append(BrokerAddress(name, known.get(_MASTER_ID) or known[min(known)]))
        return sorted(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the list of brokers does not read: {error!r}") from error


def ask_topics() -> Command:
    """Return the question to a broker which topics it has."""
    return request(RequestCode.GET_ALL_TOPIC_CONFIG)


def topics_in(answer: Command) -> dict[str, bool]:
    """Return the topics of a broker, sorted, and whether each may be read.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    table = _table(answer, "topicConfigTable")
    try:
        return {name: bool(int(table[name]["perm"]) & _READABLE) for name in sorted(table)}
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the list of topics does not read: {error!r}") from error


def is_told_of(topic: str) -> bool:
    """Return whether a topic may hold messages of applications, or copies of such."""
    copies = topic.startswith((RETRY_PREFIX, DEAD_PREFIX)) or topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
    return copies or not is_special(topic)


def ask_ranges(topic: str) -> Command:
    """Return the question to a broker what the queues of a topic hold."""
    return request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})


def ranges_in(answer: Command) -> list[QueueRange]:
    """Return the queues of a topic, in order. An empty queue begins where it ends.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    table = _table(answer, "offsetTable")
    try:
        found = [
            QueueRange(int(dict(queue)["queueId"]), int(each["minOffset"]), int(each["maxOffset"]))
            for queue, each in table.items()
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the queues of a topic do not read: {error!r}") from error
    return sorted(
        QueueRange(each.queue_id, max(0, each.begin), max(0, each.begin, each.end))
        for each in found
    )


def ask_first_since(topic: str, queue_id: int, since_ms: int) -> Command:
    """Return the question for the first offset of a queue that was stored at or after a time."""
    header = SearchOffsetHeader(topic=topic, queue_id=queue_id, timestamp=since_ms)
    return request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.to_ext())


def first_in(answer: Command) -> int:
    """Return that offset.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    text = _succeeded(answer).ext_fields.get("offset", "")
    if not text.removeprefix("-").isdecimal():
        raise ProtocolError(f"an offset does not read: {text!r}")
    return int(text)


def ask_progress() -> Command:
    """Return the question to a broker how far all groups have come."""
    return request(RequestCode.GET_ALL_CONSUMER_OFFSET)


def progress_in(answer: Command) -> Progress:
    """Return the committed offsets.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    body = _succeeded(answer).body
    try:
        return committed_offsets(body) if body else {}  # Apache's has none before the first
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def ask_groups() -> Command:
    """Return the question to a broker which consumer groups it has."""
    return request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)


def groups_in(answer: Command) -> frozenset[str]:
    """Return the names of the groups.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    try:
        return group_names(_succeeded(answer).body)
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def ask_settings() -> Command:
    """Return the question to a broker how it is set."""
    return request(RequestCode.GET_BROKER_CONFIG)


def delay_levels_in(answer: Command) -> str | None:
    """Return the broker's delay levels, such as "1s 5s", or None when it does not tell.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    try:
        return parse_properties(_succeeded(answer).body.decode()).get(_LEVELS)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the settings of a broker do not read: {error}") from error


def ask_runtime() -> Command:
    """Return the question to a broker how it does."""
    return request(RequestCode.GET_BROKER_RUNTIME_INFO)


def clock_in(answer: Command) -> float | None:
    """Return what a broker's clock showed when it answered, or None when it does not tell.

    It says when it was started, and how long ago that was, in whole seconds; so the clock is up to
    a second further. In seconds since the epoch.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    table = _table(answer, "table")
    uptime = _UPTIME.search(str(table.get("runtime", "")))
    started = str(table.get("bootTimestamp", ""))
    if uptime is None or not started.isdecimal():
        return None
    parts = (int(part.replace(",", "")) for part in uptime.groups())
    seconds = sum(part * size for part, size in zip(parts, _UPTIME_SECONDS, strict=True))
    return int(started) / 1000 + seconds


def oldest_in(answer: Command) -> int | None:
    """Return when the first record of a broker's log was stored, or None when it does not tell.

    By the broker's clock, in milliseconds since the epoch. The answer is that to `ask_runtime`.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    text = str(_table(answer, "table").get("earliestMessageTimeStamp", ""))
    return int(text) if text.isdecimal() else None


def ask_messages(topic: str, queue_id: int, begin: int, end: int, size_max: int) -> Command:
    """Return a pull of messages from `begin` on, none at or behind `end`, of about that size."""
    header = PullMessageHeader(
        consumer_group=READER,
        topic=topic,
        queue_id=queue_id,
        queue_offset=begin,
        max_msg_nums=min(_PULL_COUNT, end - begin),
        sys_flag=_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        expression_type="TAG",
        max_msg_bytes=size_max,
    )
    return request(RequestCode.PULL_MESSAGE, header.to_ext())


class PullStatus(Enum):
    """What became of a pull."""

    MESSAGES = auto()
    GONE = auto()  # these messages expired since the range was asked for
    NOTHING = auto()  # there is nothing readable at this offset, but may be behind it
    END = auto()  # the queue ends here


@dataclass(frozen=True)
class Pulled:
    """The answer to a pull: records in `body`, and the offset to go on at."""

    came: PullStatus
    next_offset: int
    body: bytes = b""


def messages_in(answer: Command, begin: int) -> Pulled:
    """Return what a pull from offset `begin` on brought.

    Raises:
        RemoteError, ProtocolError: when the broker refused, or the answer is none.
    """
    if answer.code == ResponseCode.SUCCESS:
        after = PullResultHeader.decode(answer.ext_fields).next_begin_offset
        if after <= begin:
            raise ProtocolError(f"a pull from offset {begin} goes on at {after}")
        return Pulled(PullStatus.MESSAGES, after, answer.body)
    if answer.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
        header = PullResultHeader.decode(answer.ext_fields)
        after = header.next_begin_offset
        if after <= begin and answer.code == ResponseCode.PULL_OFFSET_MOVED:
            return Pulled(PullStatus.END, begin)  # the queue is shorter than it was
        is_gone = begin < header.min_offset
        return Pulled(PullStatus.GONE if is_gone else PullStatus.NOTHING, max(after, begin + 1))
    if answer.code == ResponseCode.PULL_NOT_FOUND:
        return Pulled(PullStatus.END, begin)
    raise RemoteError(answer.code, answer.remark or "")


def _succeeded(answer: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteError(answer.code, answer.remark or "")
    return answer


def _table(answer: Command, name: str) -> Mapping[Any, Any]:
    try:
        table = fastjson.loads(_succeeded(answer).body)[name]
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"an answer does not read: {error!r}") from error
    if not isinstance(table, dict):
        raise ProtocolError(f"an answer does not read: {name} is {table!r}")
    return table
