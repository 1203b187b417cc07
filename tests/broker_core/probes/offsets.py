"""Offsets of groups and queues."""

from tests.broker_core.probes.asking import (
    GROUP,
    ONE,
    PULL_RESULT,
    TOPIC,
    Probe,
    pulling,
)

from reliable_mq.wire.codes import RequestCode as Ask

OFFSETS = [
    Probe(
        "an offset of a young queue",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": TOPIC, "queueId": 0},
        shows=ONE,
    ),
    Probe(
        "an offset that is not zero",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": TOPIC, "queueId": 0, "setZeroIfNotFound": "false"},
    ),
    Probe(
        "an offset set to zero",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": TOPIC, "queueId": 0, "setZeroIfNotFound": "true"},
        shows=ONE,
    ),
    Probe(
        "an offset of an empty queue",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": "fresh", "queueId": 2},
    ),
    Probe(
        "an offset of no topic",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": "nowhere", "queueId": 0},
    ),
    Probe(
        "an offset without a queue",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": TOPIC},
        is_bug_there=True,
    ),
    Probe(
        "a commit",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 2},
    ),
    Probe(
        "the committed offset",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0},
        shows=ONE,
    ),
    Probe(
        "a commit of no group",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "nobody2", "topic": TOPIC, "queueId": 0, "commitOffset": 2},
    ),
    Probe(
        "a commit of no topic",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": "nowhere", "queueId": 0, "commitOffset": 2},
    ),
    Probe(
        "a commit of no queue",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "commitOffset": 2},
    ),
    Probe(
        "a commit of no offset",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0},
    ),
    Probe(
        "a commit back",
        Ask.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 1},
    ),
    Probe(
        "the offset went back",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0},
        shows=ONE,
    ),
    Probe(
        "a pull that commits",
        Ask.PULL_MESSAGE,
        pulling(sysFlag=5, commitOffset=3, maxMsgNums=1),
        b"",
        PULL_RESULT,
    ),
    Probe(
        "the pull's commit",
        Ask.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0},
        shows=ONE,
    ),
    Probe("the end", Ask.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0}, shows=ONE),
    Probe("the end of no topic", Ask.GET_MAX_OFFSET, {"topic": "nowhere", "queueId": 0}, shows=ONE),
    Probe("the begin", Ask.GET_MIN_OFFSET, {"topic": TOPIC, "queueId": 0}, shows=ONE),
    Probe(
        "the begin of no topic",
        Ask.GET_MIN_OFFSET,
        {"topic": "nowhere2", "queueId": 0},
        shows=ONE,
    ),
    Probe(
        "the first time of no topic",
        Ask.GET_EARLIEST_MSG_STORETIME,
        {"topic": "nowhere", "queueId": 0},
        shows=("timestamp",),
    ),
    Probe(
        "the first time of an empty queue",
        Ask.GET_EARLIEST_MSG_STORETIME,
        {"topic": "fresh", "queueId": 2},
        shows=("timestamp",),
    ),
    Probe(
        "an offset long ago",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": TOPIC, "queueId": 0, "timestamp": 0},
        shows=ONE,
    ),
    Probe(
        "an offset in the future",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": TOPIC, "queueId": 0, "timestamp": 2**52},
        shows=ONE,
    ),
    Probe(
        "an upper offset in the future",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": TOPIC, "queueId": 0, "timestamp": 2**52, "boundaryType": "upper"},
        shows=ONE,
    ),
    Probe(
        "an upper offset long ago",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": TOPIC, "queueId": 0, "timestamp": 0, "boundaryType": "upper"},
        shows=ONE,
    ),
    Probe(
        "an offset by time of no topic",
        Ask.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": "nowhere", "queueId": 0, "timestamp": 0},
        shows=ONE,
    ),
    Probe(
        "Go's search by time", Ask.GET_MAX_OFFSET, {"Topic": TOPIC, "QueueId": 0}, is_bug_there=True
    ),
]
