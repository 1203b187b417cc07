"""Refusals: what is asked cannot be done, and the reply says why in Apache's words.

B1: a request that is refused changes nothing, so handlers refuse before they change.
"""

from collections.abc import Mapping

from reliable_mq.errors import ReliableMQError
from reliable_mq.limits import NAME_LENGTH_MAX, TABLE_SIZE_MAX
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command

SEE_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class RequestRefused(ReliableMQError):
    """A request is answered with a code that means no.

    Args:
        code: the reply's code.
        remark: the reply's remark, as Apache's broker words it.
        ext: the reply's ext fields.
    """

    def __init__(
        self, code: ResponseCode, remark: str, ext: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext


# What one request may name: real clients stay far below, and more would stop everybody's broker.
GROUPS_MAX = 1_000  # in a heartbeat, or with a threshold for cold reads
GROUPS_OF_CONNECTION_MAX = 10_000  # whose producers or consumers are behind one connection
QUEUES_ASKED_MAX = 10_000  # in a request for locks or numbers


def body_of(command: Command) -> bytes:
    """Return the body of a request that means nothing without one.

    Raises:
        Refused: when there is none.
    """
    if not command.body:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the request's body is missing")
    return command.body


def refuse_above(count: int, count_max: int, what: str) -> None:
    """Refuse a request that names too much.

    Raises:
        Refused: when `count` is more than `count_max`.
    """
    if count > count_max:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"the request is about {count} {what}, at most {count_max} are allowed",
        )


def no_room_for_offsets() -> RequestRefused:
    """Return the refusal of a request that would add an offset to a table that is full."""
    return RequestRefused(
        ResponseCode.SYSTEM_ERROR,
        "the broker keeps as many offsets of groups as it may: delete topics that nobody needs, or "
        "groups with their offsets (cleanOffset)",
    )


def refuse_long_names(*names: str) -> None:
    """Refuse a request whose names would be kept, and are longer than any real one.

    Raises:
        Refused: when one has more than NAME_LENGTH_MAX characters.
    """
    for name in names:
        if len(name) > NAME_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"a name of {len(name)} characters, at most {NAME_LENGTH_MAX} are allowed",
            )


def table_full(what: str) -> RequestRefused:
    """Return the refusal of a request that would make the table of topics or of groups longer."""
    return RequestRefused(
        ResponseCode.SYSTEM_ERROR,
        f"the broker's table of {what} has {TABLE_SIZE_MAX} characters of JSON or more: delete "
        f"{what} that nobody needs; rows may be changed if they get no longer",
    )


def no_such_topic(topic: str, *, after: str = "") -> RequestRefused:
    """Return the refusal of a send or pull; `after` is what Apache puts before its advice."""
    return RequestRefused(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[{topic}] not exist, apply first please!{after}{SEE_FAQ}",
    )


def no_such_queue(queue_id: int, topic: object, producer: str) -> RequestRefused:
    """Return the refusal of a send to a queue that the topic does not have."""
    return RequestRefused(
        ResponseCode.INVALID_PARAMETER,
        f"request queueId[{queue_id}] is illegal, {topic} Producer: {producer}",
    )


def too_large(body_size_max: int) -> RequestRefused:
    """Return the refusal of a message whose body or properties cannot be stored."""
    return RequestRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg body length limit {body_size_max}B, msg properties length limit 32KB.",
    )


def no_such_group(group: str) -> RequestRefused:
    """Return the refusal of a retry for a group that is not there and may not be created."""
    return RequestRefused(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group not exist, {group} {SEE_FAQ}",
    )
