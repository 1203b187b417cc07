"""What a consumer tells administrators of itself, as `mqadmin consumerStatus` prints it.

Receives a group and the time; hands on bodies of replies. Source: Apache RocketMQ
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
    """Return the body that answers GET_CONSUMER_RUNNING_INFO.

    Args:
        group: whose queues are told.
        instant: now.
        name_servers: "host:port", several joined by ";".
        version: of this client.
        calls: how many handler calls run.
        stacks: what threads and handlers are doing; None: nobody asked.
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
            topic: group.rates.of(topic, instant.seconds).status(instant.seconds)
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
    """Return the body that answers CONSUME_MESSAGE_DIRECTLY: what the handler came to.

    A dead letter is not made, and nothing is sent back: that is only said.
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
    if remark:  # the words of an error may have what is no character, from the name of a file say
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
        """Return a time of one of our clocks as tools want it; 0 for never."""
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
