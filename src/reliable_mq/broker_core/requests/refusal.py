"""Refusals: replies to requests that cannot be done, with Apache's remarks.

B1: a refused request changes nothing, so handlers refuse before they change anything.
"""

from collections.abc import Mapping

from reliable_mq.errors import ReliableMQError
from reliable_mq.limits import NAME_LENGTH_MAX, TABLE_SIZE_MAX
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command

SEE_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class RequestRefused(ReliableMQError):
    """A request is refused: the reply has an error code.

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


def of_unverified() -> RequestRefused:
    """Return the refusal of a slave whose log may differ from its master's."""
    return RequestRefused(
        ResponseCode.SYSTEM_BUSY,
        "[REJECTREQUEST]system busy, start flow control for a while: this slave's log is not known "
        "to be its master's",
    )


# Limits of one request. Real clients stay far below; more work would block all other clients.
GROUPS_MAX = 1_000  # groups of a heartbeat, and groups with a threshold for cold reads
GROUPS_OF_CONNECTION_MAX = 10_000  # groups with a producer or consumer on one connection
QUEUES_ASKED_MAX = 10_000  # queues of a request for locks or statistics


def body_of(command: Command) -> bytes:
    """Return the body of a request that needs one.

    Raises:
        RequestRefused: when the body is empty.
    """
    if not command.body:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the request's body is missing")
    return command.body


def refuse_above(count: int, count_max: int, what: str) -> None:
    """Refuse a request that names too much.

    Raises:
        RequestRefused: when `count` is more than `count_max`.
    """
    if count > count_max:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"the request has {count} {what}, at most {count_max} are allowed",
        )


def no_room_for_offsets() -> RequestRefused:
    """Return the refusal of a request that would add an offset to a full table."""
    return RequestRefused(
        ResponseCode.SYSTEM_ERROR,
        "the broker's table of consumer offsets is full: delete unused topics, or unused groups "
        "with their offsets (cleanOffset)",
    )


def refuse_long_names(*names: str) -> None:
    """Refuse a request whose names would be stored, but are longer than any real name.

    Raises:
        RequestRefused: when a name has more than NAME_LENGTH_MAX characters.
    """
    for name in names:
        if len(name) > NAME_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"a name of {len(name)} characters, at most {NAME_LENGTH_MAX} are allowed",
            )


def table_full(what: str) -> RequestRefused:
    """Return the refusal of a request that would enlarge a full table of topics or groups."""
    return RequestRefused(
        ResponseCode.SYSTEM_ERROR,
        f"the broker's table of {what} has {TABLE_SIZE_MAX} characters of JSON or more: delete "
        f"unused {what}; rows may be changed if they get no longer",
    )


def no_such_topic(topic: str, *, after: str = "") -> RequestRefused:
    """Return the refusal of a send or pull; `after` is Apache's text before its advice."""
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
    """Return the refusal of a retry for an unknown group that may not be created."""
    return RequestRefused(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group not exist, {group} {SEE_FAQ}",
    )
