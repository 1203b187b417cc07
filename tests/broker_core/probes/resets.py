"""Offsets set for a group by tools."""

from tests.broker_core.probes.asking import (
    GROUP,
    ONE,
    PULL_RESULT,
    TOPIC,
    Probe,
    body_of,
    heartbeat,
    pulling,
    subscription,
)

from reliable_mq.wire.codes import RequestCode as Ask

RESET = Ask.INVOKE_BROKER_TO_RESET_OFFSET
STATUS = Ask.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
NO_QUEUE_KEPT = "Apache keeps the reset of a queue that is not there, ours refuses it"


def resetting(**changes: object) -> dict[str, object]:
    return {"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": "true", **changes}


def cloning(**changes: object) -> dict[str, object]:
    return {"srcGroup": GROUP, "destGroup": "heirs", "topic": TOPIC, "offline": "true", **changes}


def committed(group: str = GROUP, queue_id: int = 0) -> dict[str, object]:
    return {"consumerGroup": group, "topic": TOPIC, "queueId": queue_id}


def correcting(**changes: object) -> dict[str, object]:
    return {"topic": TOPIC, "compareGroup": "nobody", **changes}


RESETS = [
    Probe("a reset of no topic", RESET, resetting(topic="nowhere")),
    Probe("a reset of no group", RESET, resetting(group="nobody_at_all")),
    Probe("a reset without a topic", RESET, {"group": GROUP, "timestamp": 0}, is_bug_there=True),
    Probe("a reset to the end", RESET, resetting(), shows_body=True),
    Probe("the offset after a reset", Ask.QUERY_CONSUMER_OFFSET, committed(), shows=ONE),
    Probe(
        "a commit after a reset",
        Ask.UPDATE_CONSUMER_OFFSET,
        {**committed(), "commitOffset": 1},
    ),
    Probe("the offset after that commit", Ask.QUERY_CONSUMER_OFFSET, committed(), shows=ONE),
    Probe("a reset to the beginning", RESET, resetting(timestamp=0), shows_body=True),
    Probe("the pull after a reset", Ask.PULL_MESSAGE, pulling(queueOffset=3), shows=PULL_RESULT),
    Probe("the pull after that", Ask.PULL_MESSAGE, pulling(maxMsgNums=1), shows=PULL_RESULT),
    Probe("a reset of one queue", RESET, resetting(queueId=0, timestamp=0), shows_body=True),
    Probe("a reset to an offset", RESET, resetting(queueId=0, offset=1), shows_body=True),
    Probe(
        "a reset far behind the end", RESET, resetting(queueId=0, offset=2**40), is_bug_there=True
    ),
    Probe("a reset before the beginning", RESET, resetting(queueId=0, offset=-2)),
    Probe("a reset of a queue too many", RESET, resetting(queueId=77), shows_body=True),
    Probe("a reset in the future", RESET, resetting(timestamp=2**52), shows_body=True),
    Probe("the pull of a group that was reset", Ask.PULL_MESSAGE, pulling(), shows=PULL_RESULT),
    Probe("a clone", Ask.CLONE_GROUP_OFFSET, cloning()),
    Probe("the offset of a clone", Ask.QUERY_CONSUMER_OFFSET, committed("heirs"), shows=ONE),
    Probe("a clone of no topic", Ask.CLONE_GROUP_OFFSET, cloning(topic="nowhere")),
    Probe("a clone of no group", Ask.CLONE_GROUP_OFFSET, cloning(srcGroup="nobody_at_all")),
    Probe("a clone of all topics", Ask.CLONE_GROUP_OFFSET, cloning(topic=None)),
    Probe(
        "corrections",
        Ask.QUERY_CORRECTION_OFFSET,
        correcting(),
        shows_body=True,
        differs=NO_QUEUE_KEPT,
    ),
    Probe(
        "corrections of no topic",
        Ask.QUERY_CORRECTION_OFFSET,
        correcting(topic="nowhere"),
        shows_body=True,
    ),
    Probe(
        "corrections beside a group",
        Ask.QUERY_CORRECTION_OFFSET,
        correcting(compareGroup=GROUP),
        shows_body=True,
        differs=NO_QUEUE_KEPT,
    ),
    Probe("the status of no group", STATUS, {"topic": TOPIC, "group": "nobody"}, is_bug_there=True),
    Probe(
        "a heartbeat by SQL that does not read",
        Ask.HEART_BEAT,
        body=body_of(
            heartbeat(group="sql_group", subscriptionDataSet=[subscription(TOPIC, "a >", "SQL92")])
        ),
    ),
    Probe(
        "the pull of a group whose SQL does not read",
        Ask.PULL_MESSAGE,
        pulling(consumerGroup="sql_group", sysFlag=0),
        differs="ours reads no expression while filters are off, and says that they are",
    ),
    Probe(
        "a heartbeat by SQL",
        Ask.HEART_BEAT,
        body=body_of(
            heartbeat(
                group="sql_group",
                subscriptionDataSet=[subscription(TOPIC, "a > 1", "SQL92", sub_version=11)],
            )
        ),
    ),
    Probe(
        "the pull of a group by SQL",
        Ask.PULL_MESSAGE,
        pulling(consumerGroup="sql_group", sysFlag=0),
        shows=PULL_RESULT,
    ),
]
