"""Settles a message after its handler: it is finished, held, sent back, or a dead letter.

Source: Apache RocketMQ `ConsumeMessageConcurrentlyService`, `DefaultMQPushConsumerImpl`
(`sendMessageBack`), `AbstractSendMessageProcessor.consumerSendMsgBack`.
"""

import logging
from bisect import bisect_left

import msgspec

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.pop_leases import change_invisible, usual_wait
from reliable_mq.client.consuming.popped_queue import PoppedQueue
from reliable_mq.client.flow import Flow, Wait, call, now, succeeded
from reliable_mq.errors import ReliableMQError, RemoteError, Unavailable
from reliable_mq.limits import DELAY_LEVEL_SECONDS
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import Consumed, Outcome, Reject, Retry, retry_of_ours
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of
from reliable_mq.telemetry.outages import level_of
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request
from reliable_mq.wire.headers import SendBackHeader
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.properties import (
    CLUSTER,
    DELAY,
    FIRST_POP_TIME,
    KEYS,
    MAX_OFFSET,
    MIN_OFFSET,
    MSG_REGION,
    ORIGIN_MESSAGE_ID,
    POP_CK,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    TRACE_ON,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    WAIT,
)

log = logging.getLogger(__name__)

DEAD_LETTER_REASON = "DEAD_LETTER_REASON"
REASON_LENGTH_MAX = 1000
SEND_BACK_TIMEOUT = 5.0
TO_DEAD_LETTERS = -1
BROKER_DECIDES = 0
_CHANGING_SECONDS = 0.02

#: properties that come from a field of the message, or that each broker sets itself
_NOT_CARRIED = frozenset(
    {
        *(KEYS, TAGS, WAIT, DELAY, UNIQ_KEY, SHARDING_KEY),
        *(MSG_REGION, TRACE_ON, CLUSTER, MIN_OFFSET, MAX_OFFSET),
        *(REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_PREPARED, POP_CK, FIRST_POP_TIME),
    }
)


def delay_level_of(after_seconds: float | None) -> int:
    """Return the shortest delay level of at least this length, or the longest level.

    None gives 0: the broker decides.
    """
    if after_seconds is None:
        return BROKER_DECIDES
    return min(bisect_left(DELAY_LEVEL_SECONDS, after_seconds) + 1, len(DELAY_LEVEL_SECONDS))


def settle(
    group: ConsumerGroup, assigned: AssignedQueue, message: ReceivedMessage, outcome: Outcome
) -> Flow[None]:
    """Apply `outcome` to a running message; afterwards it is finished or held.

    After the last counted attempt, a failed message becomes a dead letter. Storing a dead letter
    is retried until it succeeds. Until then the message is unfinished, and its ordering key waits.
    """
    if isinstance(outcome, Reject):
        yield from dead_letter(group, message, outcome.reason)
    elif isinstance(outcome, Retry):
        attempt = message.reconsume_times + 1
        level = delay_level_of(_wait_of(group, message, outcome))
        if outcome.counts and attempt >= group.subscription.max_attempts:
            reason = f"attempt {attempt} of {group.subscription.max_attempts} failed"
            reason += f": {outcome.grounds}" if outcome.grounds else ""
            yield from dead_letter(group, message, reason, outcome.__cause__)
        elif not outcome.counts or _stays_here(group, message):
            yield from _hold(group, assigned, message, outcome)
            return
        elif isinstance(assigned, PoppedQueue):
            yield from _come_back(group, assigned, message, outcome)
            return
        elif not (yield from _send_back(group, message, level)):
            pause = retry_of_ours(group.settings.settle_retry_seconds, counts=False)
            yield from _hold(group, assigned, message, pause)
            return
    elif not isinstance(outcome, Consumed):
        raise TypeError(f"a handler returned {outcome!r}, which is not an outcome")
    assigned.finish(message.queue_offset)


def _stays_here(group: ConsumerGroup, message: ReceivedMessage) -> bool:
    """Whether a failed message is held in the client instead of the retry topic."""
    subscription = group.subscription
    return subscription.broadcasting or (subscription.ordered and bool(message.ordering_key))


def _wait_of(group: ConsumerGroup, message: ReceivedMessage, outcome: Retry) -> float | None:
    """Return the seconds before the next attempt if the handler or the group sets them."""
    if outcome.after is not None or not outcome.counts:
        return outcome.after
    return group.subscription.retry_wait(message.reconsume_times)


def _hold(
    group: ConsumerGroup, assigned: AssignedQueue, message: ReceivedMessage, outcome: Retry
) -> Flow[None]:
    instant = yield from now()
    pause = _wait_of(group, message, outcome)
    if pause is None:
        doubled = group.settings.hold_seconds * 2.0 ** min(message.reconsume_times, 30)
        pause = min(doubled, group.settings.hold_seconds_max)
    assigned.postpone(message.queue_offset, instant.seconds + pause, counts=outcome.counts)


def _come_back(
    group: ConsumerGroup, popped: PoppedQueue, message: ReceivedMessage, outcome: Retry
) -> Flow[None]:
    """Let a popped message come back, to any member, as its next attempt.

    If the broker does not take this, another attempt follows here.
    """
    wait = _wait_of(group, message, outcome)
    wait = usual_wait(message.reconsume_times) if wait is None else wait
    lease = popped.leases[message.queue_offset]
    while lease.is_changing:
        yield Wait(_CHANGING_SECONDS)
    (error,) = yield from change_invisible(group, [lease], wait)
    if error is None:
        popped.drop(message.queue_offset)
        return
    client_events.SEND_BACK_REFUSED.log(
        log, level=level_of(error), group=group.name, **facts_of(message), error=error
    )
    pause = retry_of_ours(group.settings.settle_retry_seconds, counts=False)
    yield from _hold(group, popped, message, pause)


def dead_letter(
    group: ConsumerGroup,
    message: ReceivedMessage,
    reason: str,
    error: BaseException | None = None,
) -> Flow[None]:
    """Move a message to the group's dead-letter topic, and retry until it is stored.

    The line about it has the traceback of the error, if there is one. It is sent with the reason.
    If that fails, the broker is asked to move it without the reason.
    In a broadcasting group the message is dropped: the other members have it too.
    """
    said = _plain(reason)  # one line in the log, whatever the reason contains
    dropped = group.subscription.broadcasting
    client_events.DEAD_LETTER.log(
        log,
        traceback_of=error,
        group=group.name,
        **facts_of(message),
        end="dropped" if dropped else "a dead letter",
        reason=said,
    )
    if dropped:
        return
    refused = _carried(message, group.subscription.dead_letter_topic, {DEAD_LETTER_REASON: said})
    while True:
        try:
            yield from group.producer.send(refused, timeout=SEND_BACK_TIMEOUT)
        except ReliableMQError as why:
            client_events.DEAD_LETTER_NOT_STORED.log(
                log, level=level_of(why), group=group.name, **facts_of(message), error=why
            )
        else:
            return
        if (yield from _ask_to_take_back(group, message, TO_DEAD_LETTERS)):
            return
        yield Wait(group.settings.settle_retry_seconds)


def _send_back(group: ConsumerGroup, message: ReceivedMessage, level: int) -> Flow[bool]:
    """Send a message to the retry topic; return whether it is stored there.

    The broker copies it from its log. If it cannot, the message is sent like any other. A group
    with queue locks never sends it: the broker would treat the message as given up (Apache RocketMQ
    `SendMessageProcessor.handleRetryAndDLQ`).
    """
    if (yield from _ask_to_take_back(group, message, level)):
        return True
    if group.subscription.ordered:
        return False
    retried = msgspec.structs.replace(
        _carried(message, group.subscription.retry_topic, {}),
        delay_level=level or min(3 + message.reconsume_times, len(DELAY_LEVEL_SECONDS)),
    )
    try:
        yield from group.producer.send_retry(
            retried,
            reconsume_times=message.reconsume_times + 1,
            max_reconsume_times=group.subscription.max_attempts,
        )
    except ReliableMQError as error:
        client_events.SEND_BACK_FAILED.log(
            log, level=level_of(error), group=group.name, **facts_of(message), error=error
        )
        return False
    return True


def _ask_to_take_back(group: ConsumerGroup, message: ReceivedMessage, level: int) -> Flow[bool]:
    address = group.master_of(message.queue.broker_name) or _store_address(message)
    header = SendBackHeader(
        offset=message.commit_log_offset,
        group=group.name,
        delay_level=level,
        origin_msg_id=message.offset_message_id,
        origin_topic=message.topic,
        unit_mode=False,
        max_reconsume_times=group.subscription.max_attempts,
    )
    command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
    try:
        succeeded((yield from call(address, command, SEND_BACK_TIMEOUT)))
    except (Unavailable, RemoteError) as error:
        client_events.SEND_BACK_REFUSED.log(
            log, level=level_of(error), group=group.name, **facts_of(message), error=error
        )
        return False
    return True


def _store_address(message: ReceivedMessage) -> str:
    """Return the address of the broker that stored the message, from the offset message id."""
    where = decode_offset_message_id(message.offset_message_id)
    ip = ".".join(map(str, where.ip)) if len(where.ip) == 4 else f"[{where.ip.hex(':', 2)}]"
    return f"{ip}:{where.port}"


def _carried(message: ReceivedMessage, topic: str, extra: dict[str, str]) -> Message:
    """Return the message for another topic, with the same id, body and properties."""
    properties = {
        name: value for name, value in message.properties.items() if name not in _NOT_CARRIED
    }
    properties.setdefault(RETRY_TOPIC, message.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
    return Message(
        topic=topic,
        body=message.body,
        tag=message.tag,
        keys=message.keys,
        message_id=message.properties.get(UNIQ_KEY) or message.message_id,
        ordering_key=message.ordering_key,
        properties={**properties, **extra},
    )


def _plain(reason: str) -> str:
    """Return `reason` as a valid property: printable, not too long, never empty."""
    printable = "".join(char if char.isprintable() else " " for char in reason)
    return printable[:REASON_LENGTH_MAX] or "no reason was given"
