"""The requests of reconciliation to a running cluster, and the decoding of the replies. Pure.

Values in, commands out; replies in, values out. It uses only the protocol, not the client's code,
which it audits. The requests change nothing: the group is the brokers' own group for tools, no
offset is committed, and no pull waits.

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
"""A consumer group that exists on every broker."""

_SUBSCRIPTION = 0x4  # the pull contains its subscription, because no heartbeat sent one
_PULL_COUNT = 1_024  # a broker may return fewer, by its settings
_MASTER_ID = 0
_READABLE = 4
_LEVELS = "messageDelayLevel"
# Java's MessageFormat writes large numbers with commas.
_UPTIME = re.compile(r"([\d,]+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")
_UPTIME_SECONDS = (86_400, 3_600, 60, 1)


class BrokerAddress(NamedTuple):
    """A broker: its name, the address from which it is read, and the cluster; "": unknown."""

    name: str
    address: str
    cluster: str = ""


class QueueRange(NamedTuple):
    """The range of offsets that a queue has; `end` is excluded."""

    queue_id: int
    begin: int
    end: int


def ask_brokers() -> Command:
    """Return the request to a name server for the list of brokers."""
    return request(RequestCode.GET_BROKER_CLUSTER_INFO)


def brokers_in(answer: Command) -> list[BrokerAddress]:
    """Return the brokers, sorted: for each name the master, or else a slave.

    Raises:
        RemoteError, ProtocolError: when the reply is an error or invalid.
    """
    table = _table(answer, "brokerAddrTable")
    try:
        found = []
        for name, data in table.items():
            known = {int(number): str(address) for number, address in data["brokerAddrs"].items()}
            if known:
                address = known.get(_MASTER_ID) or known[min(known)]
                found.append(BrokerAddress(name, address, str(data.get("cluster") or "")))
        return sorted(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the list of brokers is invalid: {error!r}") from error


def ask_topics() -> Command:
    """Return the request to a broker for its topics."""
    return request(RequestCode.GET_ALL_TOPIC_CONFIG)


def topics_in(answer: Command) -> dict[str, bool]:
    """Return the topics of a broker, sorted, and whether each is readable.

    Raises:
        RemoteError, ProtocolError: when the reply is an error or invalid.
    """
    table = _table(answer, "topicConfigTable")
    try:
        return {name: bool(int(table[name]["perm"]) & _READABLE) for name in sorted(table)}
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the list of topics is invalid: {error!r}") from error


def may_have_messages(topic: str) -> bool:
    """Return whether a topic may have messages of applications, or copies of them."""
    copies = topic.startswith((RETRY_PREFIX, DEAD_PREFIX)) or topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
    return copies or not is_special(topic)


def ask_ranges(topic: str) -> Command:
    """Return the request to a broker for the offset ranges of a topic's queues."""
    return request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})


def ranges_in(answer: Command) -> list[QueueRange]:
    """Return the queues of a topic, in order. An empty queue has `begin` = `end`.

    Raises:
        RemoteError, ProtocolError: when the reply is an error or invalid.
    """
    table = _table(answer, "offsetTable")
    try:
        found = [
            QueueRange(int(dict(queue)["queueId"]), int(each["minOffset"]), int(each["maxOffset"]))
            for queue, each in table.items()
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the list of a topic's queues is invalid: {error!r}") from error
    return sorted(
        QueueRange(each.queue_id, max(0, each.begin), max(0, each.begin, each.end))
        for each in found
    )


def ask_first_since(topic: str, queue_id: int, since_ms: int) -> Command:
    """Return the request for the first offset of a queue that was stored at or after a time."""
    header = SearchOffsetHeader(topic=topic, queue_id=queue_id, timestamp=since_ms)
    return request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.to_ext())


def first_in(answer: Command) -> int:
    """Return the offset in the reply to `ask_first_since`.

    Raises:
        RemoteError, ProtocolError: when the reply is an error or invalid.
    """
    text = _succeeded(answer).ext_fields.get("offset", "")
    if not text.removeprefix("-").isdecimal():
        raise ProtocolError(f"the offset in a reply is invalid: {text!r}")
    return int(text)


def ask_progress() -> Command:
    """Return the request to a broker for the committed offsets of all groups."""
    return request(RequestCode.GET_ALL_CONSUMER_OFFSET)


def progress_in(answer: Command) -> Progress:
    """Return the committed offsets.

    Raises:
        RemoteError, ProtocolError: when the reply is an error or invalid.
    """
    body = _succeeded(answer).body
    try:
        return committed_offsets(body) if body else {}  # Apache's has none before the first
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def ask_groups() -> Command:
    """Return the request to a broker for its consumer groups."""
    return request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)


def groups_in(answer: Command) -> frozenset[str]:
    """Return the names of the groups.

    Raises:
        RemoteError, ProtocolError: when the reply is an error or invalid.
    """
    try:
        return group_names(_succeeded(answer).body)
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def ask_settings() -> Command:
    """Return the request to a broker for its settings."""
    return request(RequestCode.GET_BROKER_CONFIG)


def delay_levels_in(answer: Command) -> str | None:
    """Return the broker's delay levels, such as "1s 5s", or None if the reply lacks them.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    return settings_in(answer).get(_LEVELS)


def settings_in(answer: Command) -> Mapping[str, str]:
    """Return the settings of a broker.

    Raises:
        RemoteError, ProtocolError: when the answer is none.
    """
    try:
        return parse_properties(_succeeded(answer).body.decode())
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the settings of a broker are invalid: {error}") from error


def ask_runtime() -> Command:
    """Return the request to a broker for its runtime values."""
    return request(RequestCode.GET_BROKER_RUNTIME_INFO)


def clock_in(answer: Command) -> float | None:
    """Return the time of a broker's clock when it replied, or None if the reply lacks it.

    In seconds since the epoch. The reply has the start time and the uptime in whole seconds, so the
    clock may be up to a second ahead of the result.

    Raises:
        RemoteError, ProtocolError: when the reply is an error or invalid.
    """
    times = times_in(answer)
    return None if times is None else times[1]


def times_in(answer: Command) -> tuple[float, float] | None:
    """Return when a broker started, and the time of its clock when it replied; see `clock_in`.

    Raises:
        RemoteError, ProtocolError: when the reply is an error or invalid.
    """
    table = _table(answer, "table")
    uptime = _UPTIME.search(str(table.get("runtime", "")))
    started = str(table.get("bootTimestamp", ""))
    if uptime is None or not started.isdecimal():
        return None
    parts = (int(part.replace(",", "")) for part in uptime.groups())
    seconds = sum(part * size for part, size in zip(parts, _UPTIME_SECONDS, strict=True))
    return int(started) / 1000, int(started) / 1000 + seconds


def oldest_in(answer: Command) -> int | None:
    """Return the store time of the first record of a broker's log, or None if the reply lacks it.

    In milliseconds since the epoch, by the broker's clock. `answer` is the reply to `ask_runtime`.

    Raises:
        RemoteError, ProtocolError: when the reply is an error or invalid.
    """
    text = str(_table(answer, "table").get("earliestMessageTimeStamp", ""))
    return int(text) if text.isdecimal() else None


def ask_messages(
    topic: str, queue_id: int, begin: int, end: int, size_max: int, tags: str = "*"
) -> Command:
    """Return a pull of the messages `begin` … `end` - 1, of at most about `size_max` bytes.

    With `tags`, such as "a || b", only of messages with these tags; the last may lie behind `end`.
    """
    header = PullMessageHeader(
        consumer_group=READER,
        topic=topic,
        queue_id=queue_id,
        queue_offset=begin,
        max_msg_nums=min(_PULL_COUNT, end - begin),
        sys_flag=_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=tags,
        expression_type="TAG",
        max_msg_bytes=size_max,
    )
    return request(RequestCode.PULL_MESSAGE, header.to_ext())


class PullStatus(Enum):
    """The result of a pull."""

    MESSAGES = auto()
    GONE = auto()  # these messages expired since the range was requested
    NOTHING = auto()  # nothing is readable at this offset, but there may be messages after it
    END = auto()  # the queue ends here


@dataclass(frozen=True)
class Pulled:
    """The reply to a pull: records in `body`, and the offset of the next pull."""

    came: PullStatus
    next_offset: int
    body: bytes = b""


def messages_in(answer: Command, begin: int) -> Pulled:
    """Return the result of a pull from offset `begin`.

    Raises:
        RemoteError, ProtocolError: when the broker refused, or the reply is invalid.
    """
    if answer.code == ResponseCode.SUCCESS:
        result = answer.pull_result or PullResultHeader.decode(answer.ext_fields)
        after = result.next_begin_offset
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
        raise ProtocolError(f"a reply is invalid: {error!r}") from error
    if not isinstance(table, dict):
        raise ProtocolError(f"a reply is invalid: {name} is {table!r}")
    return table
