"""Pulls that bring their subscription with them."""

from tests.broker_core.probes.asking import (
    NO_READ,
    PULL_FLAGS,
    PULL_RESULT,
    QUEUES,
    Probe,
    pulling,
)

from reliable_mq.wire.codes import RequestCode as Ask

PULLS = [
    Probe("a pull", Ask.PULL_MESSAGE, pulling(maxMsgNums=1), b"", PULL_RESULT + PULL_FLAGS),
    Probe(
        "a pull of one tag",
        Ask.PULL_MESSAGE,
        pulling(subscription="red", maxMsgNums=2),
        b"",
        PULL_RESULT,
    ),
    Probe(
        "a pull of no tag there",
        Ask.PULL_MESSAGE,
        pulling(subscription="blue || green"),
        b"",
        PULL_RESULT,
    ),
    Probe("a pull at the end", Ask.PULL_MESSAGE, pulling(queueOffset=4), b"", PULL_RESULT),
    Probe("a pull after the end", Ask.PULL_MESSAGE, pulling(queueOffset=99), b"", PULL_RESULT),
    Probe("a pull before the begin", Ask.PULL_MESSAGE, pulling(queueOffset=-1), b"", PULL_RESULT),
    Probe(
        "a pull of an empty queue",
        Ask.PULL_MESSAGE,
        pulling(topic="fresh", queueId=3),
        b"",
        PULL_RESULT,
    ),
    Probe(
        "a pull of an empty queue's end",
        Ask.PULL_MESSAGE,
        pulling(topic="fresh", queueId=3, queueOffset=7),
        b"",
        PULL_RESULT,
    ),
    Probe("a pull of no message", Ask.PULL_MESSAGE, pulling(maxMsgNums=0), b"", PULL_RESULT),
    Probe(
        "a pull of a negative number", Ask.PULL_MESSAGE, pulling(maxMsgNums=-5), b"", PULL_RESULT
    ),
    Probe("a light pull", Ask.LITE_PULL_MESSAGE, pulling(maxMsgNums=1), b"", PULL_RESULT),
    Probe("a pull of no topic", Ask.PULL_MESSAGE, pulling(topic="nowhere")),
    Probe(
        "a pull of a topic that cannot be read",
        Ask.PULL_MESSAGE,
        pulling(topic=NO_READ),
        shows=("forbiddenType",),
    ),
    Probe("a pull of a queue out of range", Ask.PULL_MESSAGE, pulling(queueId=QUEUES)),
    Probe("a pull of a negative queue", Ask.PULL_MESSAGE, pulling(queueId=-1)),
    Probe("a pull of an illegal group", Ask.PULL_MESSAGE, pulling(consumerGroup="a group?")),
    Probe("a pull of a long group", Ask.PULL_MESSAGE, pulling(consumerGroup="g" * 121)),
    Probe(
        "a pull by an empty expression",
        Ask.PULL_MESSAGE,
        pulling(subscription=""),
        b"",
        PULL_RESULT,
    ),
    Probe("a pull by bars", Ask.PULL_MESSAGE, pulling(subscription="||")),
    Probe("a pull by SQL", Ask.PULL_MESSAGE, pulling(subscription="a > 1", expressionType="SQL92")),
    Probe(
        "a pull by bad SQL", Ask.PULL_MESSAGE, pulling(subscription="a >", expressionType="SQL92")
    ),
    Probe("a pull by no SQL", Ask.PULL_MESSAGE, pulling(subscription="", expressionType="SQL92")),
    Probe(
        "a pull by an unknown language",
        Ask.PULL_MESSAGE,
        pulling(subscription="x", expressionType="ZZ"),
    ),
    Probe("a pull of nobody", Ask.PULL_MESSAGE, pulling(sysFlag=0, consumerGroup="nobody")),
    Probe("a pull of queue x", Ask.PULL_MESSAGE, pulling(queueId="x"), is_bug_there=True),
    Probe("a pull without a topic", Ask.PULL_MESSAGE, pulling(topic=None), is_bug_there=True),
    Probe(
        "a pull without an offset", Ask.PULL_MESSAGE, pulling(queueOffset=None), is_bug_there=True
    ),
]
