"""What a client tells a broker about popped messages: handled, or invisible for another time.

Source: Apache RocketMQ `AckMessageProcessor`, `ChangeInvisibleTimeProcessor`.
"""

from collections.abc import Sequence

from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.popped_queue import PopLease
from reliable_mq.client.flow import Call, Flow, Instant, call, call_all, now, reply_of, succeeded
from reliable_mq.errors import NoRoute, ProtocolError, ReliableMQError
from reliable_mq.limits import DELAY_LEVEL_SECONDS
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.pop_answer import batch_ack_body
from reliable_mq.wire.pop_handle import PopHandle, stored_topic
from reliable_mq.wire.remote_faults import remote_error

ACK_SECONDS = 5.0
"""How long the answer to an acknowledgement is awaited."""
_FIRST_RETRY_LEVEL = 2  # 10 s: Apache RocketMQ `CustomizedRetryPolicy`


def usual_wait(reconsume_times: int) -> float:
    """Return the seconds before the next attempt of a message, as Apache's groups have them."""
    level = min(reconsume_times + _FIRST_RETRY_LEVEL, len(DELAY_LEVEL_SECONDS) - 1)
    return DELAY_LEVEL_SECONDS[level]


def acknowledge(group: ConsumerGroup, broker_name: str, leases: Sequence[PopLease]) -> Flow[None]:
    """Tell a broker that messages are handled. It must not deliver them again.

    Brokers take an acknowledgement that comes too late, or twice, and ignore it.

    Raises:
        Unavailable: when it does not answer; it may have stored the acknowledgement.
        RemoteError: when it refuses.
    """
    if len(leases) == 1:
        command = _ack_command(group, leases[0])
    else:
        body = batch_ack_body(
            group.name, broker_name, ((lease.topic, lease.handle) for lease in leases)
        )
        command = request(RequestCode.BATCH_ACK_MESSAGE, None, body)
    reply = yield from call(_master(group, broker_name), command, ACK_SECONDS)
    if reply.code != ResponseCode.SUCCESS:
        raise remote_error(reply.code, reply.remark, reply.ext_fields)


def change_invisible(
    group: ConsumerGroup, leases: Sequence[PopLease], seconds: float, renew_part: float = 1.0
) -> Flow[list[ReliableMQError | None]]:
    """Let messages come back `seconds` from now, unless they are acknowledged or changed before.

    A lease gets its new handle, and its times, which count from before the request: the broker
    counts from when it came. Returns the error of each, or None.

    Args:
        group: the state of the consumer.
        leases: leases that have not ended. Give those of one broker: all answers are awaited.
        seconds: at least 0; a broker takes milliseconds.
        renew_part: after this part of `seconds` a lease is to be extended again.
    """
    errors: list[ReliableMQError | None] = [
        None
        if group.master_of(lease.handle.broker)
        else NoRoute(f"no name server knows the master of {lease.handle.broker}")
        for lease in leases
    ]
    reachable = [lease for lease, error in zip(leases, errors, strict=True) if error is None]
    instant: Instant = yield from now()
    for lease in reachable:
        lease.is_changing = True
    try:
        calls = [_change_call(group, lease, seconds) for lease in reachable]
        answers = iter((yield from call_all(calls)))
    finally:
        for lease in reachable:
            lease.is_changing = False
    for at, lease in enumerate(leases):
        if errors[at] is not None:
            continue
        answer = next(answers)
        try:
            lease.handle = _new_handle(lease.handle, succeeded(reply_of(answer)))
        except ReliableMQError as error:
            errors[at] = error
            continue
        lease.expires = instant.lease_seconds + seconds
        lease.renew_at = instant.lease_seconds + seconds * renew_part
    return errors


def _new_handle(old: PopHandle, reply: Command) -> PopHandle:
    """Return the handle of a message whose invisible time was changed.

    Its new checkpoint has only this message.
    """
    try:
        popped, invisible = int(reply.ext_fields["popTime"]), int(reply.ext_fields["invisibleTime"])
        revive = int(reply.ext_fields["reviveQid"])
    except (KeyError, ValueError) as error:
        raise ProtocolError(
            f"the answer to a change of an invisible time cannot be decoded: {error!r}"
        ) from error
    start = old.start_offset if old.offset is None else old.offset
    return old._replace(
        start_offset=start, popped_ms=popped, invisible_ms=invisible, revive_queue=revive
    )


def _change_call(group: ConsumerGroup, lease: PopLease, seconds: float) -> Call:
    ext = _fields(group, lease) | {"invisibleTime": str(int(seconds * 1000))}
    command = request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
    return Call(_master(group, lease.handle.broker), command, ACK_SECONDS)


def _ack_command(group: ConsumerGroup, lease: PopLease) -> Command:
    return request(RequestCode.ACK_MESSAGE, _fields(group, lease))


def _fields(group: ConsumerGroup, lease: PopLease) -> dict[str, str]:
    handle = lease.handle
    return {
        "consumerGroup": group.name,
        "topic": stored_topic(lease.topic, group.name, handle.kind),
        "queueId": str(handle.queue_id),
        "extraInfo": handle.text(),
        "offset": str(lease.message.queue_offset),
    }


def _master(group: ConsumerGroup, broker_name: str) -> str:
    address = group.master_of(broker_name)
    if address is None:
        raise NoRoute(f"no name server knows the master of {broker_name}")
    return address
