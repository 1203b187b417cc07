"""The facts of a consumer for administrators, as `mqadmin consumerStatus` prints them.

It receives a group and the time, and returns bodies of replies. Source: Apache RocketMQ
`ConsumerRunningInfo`, `ProcessQueueInfo`, `ConsumeMessageDirectlyResult`.
"""

from reliable_mq.client.consuming.assigned_queue import NEVER, AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.filters import subscription_data
from reliable_mq.client.flow import Instant
from reliable_mq.outcomes import Consumed, Outcome, Reject, Retry
from reliable_mq.wire import fastjson

_MEBIBYTE = 1024 * 1024


def running_info(
    group: ConsumerGroup,
    instant: Instant,
    *,
    name_servers: str,
    version: str,
    calls: int,
    stacks: str | None,
) -> bytes:
    """Return the body of the reply to GET_CONSUMER_RUNNING_INFO.

    Args:
        group: the group of the queues.
        instant: the current time.
        name_servers: "host:port", several joined by ";".
        version: the version of this client.
        calls: number of running handler calls.
        stacks: stacks of threads and handlers; None when they were not requested.
    """
    subscription = group.subscription
    info: dict[str, object] = {
        "mqPopTable": {},
        "mqTable": {
            _key(assigned): _of_queue(assigned, instant, group) for assigned in _told(group)
        },
        "properties": {
            "PROP_CLIENT_VERSION": version,
            "PROP_CONSUMEORDERLY": str(subscription.ordered).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(group.started_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": name_servers,
            "PROP_THREADPOOL_CORE_SIZE": str(subscription.concurrency),
            "consumeMessageBatchMaxSize": str(subscription.batch),
            "consumerGroup": group.name,
            "maxReconsumeTimes": str(subscription.max_attempts),
            "pullThresholdForQueue": str(group.settings.held_count_max),
        },
        "statusTable": {
            topic: group.rates_of(topic, instant.seconds).status(instant.seconds)
            for topic in sorted(group.filters)
        },
        "subscriptionSet": [subscription_data(group, topic) for topic in sorted(group.filters)],
        "userConsumerInfo": {
            "handler calls": str(calls),
            "messages behind": str(sum(assigned.lag for assigned in _told(group))),
            "paused queues": str(sum(assigned.paused for assigned in _told(group))),
        },
    }
    if stacks is not None:
        info["jstack"] = stacks
    return fastjson.dumps(info)


def directly_consumed(outcome: Outcome | BaseException, seconds: float, *, ordered: bool) -> bytes:
    """Return the body of the reply to CONSUME_MESSAGE_DIRECTLY: the handler's outcome.

    The outcome is only reported: nothing is sent back, and no dead letter is made.
    """
    remark = None
    if isinstance(outcome, Consumed):
        result = "CR_SUCCESS"
    elif isinstance(outcome, Retry):
        result, remark = "CR_LATER", outcome.grounds
    elif isinstance(outcome, Reject):
        result, remark = "CR_LATER", f"a dead letter: {outcome.reason}"
    else:
        result, remark = "CR_THROW_EXCEPTION", f"{type(outcome).__name__}: {outcome}"
    body: dict[str, object] = {
        "autoCommit": True,
        "consumeResult": result,
        "order": ordered,
        "spentTimeMills": int(seconds * 1000),
    }
    if remark:  # an error text may contain invalid characters, for example of a file name
        body["remark"] = remark.encode(errors="backslashreplace").decode()
    return fastjson.dumps(body)


def _told(group: ConsumerGroup) -> list[AssignedQueue]:
    return [assigned for assigned in group.all_queues if assigned.is_started]


def _key(assigned: AssignedQueue) -> tuple[tuple[str, object], ...]:
    queue = assigned.queue
    return (
        ("brokerName", queue.broker_name),
        ("queueId", queue.queue_id),
        ("topic", queue.topic),
    )


def _of_queue(assigned: AssignedQueue, instant: Instant, group: ConsumerGroup) -> dict[str, object]:
    def epoch_ms(seconds: float, now: float = instant.lease_seconds) -> int:
        """Convert a time of one of our clocks for the tools; 0 means never."""
        return 0 if seconds == NEVER else instant.epoch_ms - int((now - seconds) * 1000)

    locked_at = assigned.lock_expires - group.settings.lock_valid_seconds
    held = assigned.unfinished > 0
    return {
        "cachedMsgCount": assigned.unfinished,
        "cachedMsgMaxOffset": assigned.next_offset - 1 if held else 0,
        "cachedMsgMinOffset": assigned.commit_offset if held else 0,
        "cachedMsgSizeInMiB": assigned.size // _MEBIBYTE,
        "commitOffset": assigned.commit_offset,
        "dropped": assigned.leaving,
        "lastConsumeTimestamp": epoch_ms(assigned.taken_at),
        "lastLockTimestamp": epoch_ms(locked_at),
        "lastPullTimestamp": epoch_ms(assigned.told_at, instant.seconds),
        "locked": assigned.holds_lock(instant.lease_seconds),
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }
