"""Heartbeats, subscriptions and queue locks."""

from tests.broker_core.probes.asking import (
    CLIENT,
    GROUP,
    ONE,
    PULL_RESULT,
    SEND_RESULT,
    TOPIC,
    Probe,
    body_of,
    heartbeat,
    locking,
    pulling,
    queue,
    sending,
    subscription,
)

from reliable_mq.wire.codes import RequestCode as Ask

CLIENTS = [
    Probe("nobody is there", Ask.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}),
    Probe("nobody is connected", Ask.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP}),
    Probe(
        "a heartbeat",
        Ask.HEART_BEAT,
        {},
        body_of(heartbeat(TOPIC, f"%RETRY%{GROUP}")),
        ("IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"),
    ),
    Probe("a heartbeat of nobody", Ask.HEART_BEAT, {}, b"", is_bug_there=True),
    Probe("a heartbeat that is no JSON", Ask.HEART_BEAT, {}, b"{", is_bug_there=True),
    Probe(
        "a heartbeat of an illegal group",
        Ask.HEART_BEAT,
        {},
        body_of(heartbeat(TOPIC, group="a b")),
        ("IS_SUB_CHANGE",),
    ),
    Probe(
        "who is there", Ask.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}, shows_body=True
    ),
    Probe(
        "who is connected",
        Ask.GET_CONSUMER_CONNECTION_LIST,
        {"consumerGroup": GROUP},
        shows_body=True,
    ),
    Probe(
        "the group's retry topic",
        Ask.GET_TOPIC_CONFIG,
        {"topic": f"%RETRY%{GROUP}"},
        shows_body=True,
    ),
    Probe(
        "the group's settings", Ask.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}, shows_body=True
    ),
    Probe(
        "a pull of a subscription",
        Ask.PULL_MESSAGE,
        pulling(sysFlag=0, subVersion=10, maxMsgNums=1),
        b"",
        PULL_RESULT,
    ),
    Probe("a pull of a newer subscription", Ask.PULL_MESSAGE, pulling(sysFlag=0, subVersion=11)),
    Probe("a pull without subscription", Ask.PULL_MESSAGE, pulling(sysFlag=0, topic="fresh")),
    Probe(
        "a fingerprint",
        Ask.HEART_BEAT,
        {},
        body_of({**heartbeat(TOPIC), "heartbeatFingerprint": 7, "withoutSub": False}),
        ("IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"),
    ),
    Probe(
        "the same fingerprint",
        Ask.HEART_BEAT,
        {},
        body_of({**heartbeat(), "heartbeatFingerprint": 7, "withoutSub": True}),
        ("IS_SUB_CHANGE",),
    ),
    Probe(
        "a subscription that was kept",
        Ask.PULL_MESSAGE,
        pulling(sysFlag=0, maxMsgNums=1),
        b"",
        PULL_RESULT,
    ),
    Probe(
        "another fingerprint",
        Ask.HEART_BEAT,
        {},
        body_of({**heartbeat(TOPIC), "heartbeatFingerprint": 8, "withoutSub": False}),
        ("IS_SUB_CHANGE",),
    ),
    Probe(
        "a client by tags",
        Ask.CHECK_CLIENT_CONFIG,
        {},
        body_of({"clientId": CLIENT, "group": GROUP, "subscriptionData": subscription(TOPIC)}),
    ),
    Probe(
        "a client by SQL",
        Ask.CHECK_CLIENT_CONFIG,
        {},
        body_of(
            {
                "clientId": CLIENT,
                "group": GROUP,
                "subscriptionData": subscription(TOPIC, "a > 1", "SQL92"),
            }
        ),
    ),
    Probe(
        "a client without subscription",
        Ask.CHECK_CLIENT_CONFIG,
        {},
        body_of({"clientId": CLIENT, "group": GROUP}),
    ),
    Probe("a client that says nothing", Ask.CHECK_CLIENT_CONFIG),
]


LOCKS = [
    Probe("a lock", Ask.LOCK_BATCH_MQ, {}, locking("a", queue()), shows_body=True),
    Probe(
        "a lock that is held",
        Ask.LOCK_BATCH_MQ,
        {},
        locking("b", queue(), queue(queue_id=1)),
        shows_body=True,
    ),
    Probe("an unlock by another", Ask.UNLOCK_BATCH_MQ, {}, locking("b", queue())),
    Probe("still held", Ask.LOCK_BATCH_MQ, {}, locking("b", queue()), shows_body=True),
    Probe(
        "a retry while a queue is locked",
        Ask.SEND_MESSAGE_V2,
        sending(topic=f"%RETRY%{GROUP}", reconsume_times=0),
        b"dead",
        SEND_RESULT,
    ),
    Probe("it died", Ask.GET_MAX_OFFSET, {"topic": f"%DLQ%{GROUP}", "queueId": 0}, shows=ONE),
    Probe("an unlock", Ask.UNLOCK_BATCH_MQ, {}, locking("a", queue())),
    Probe("free again", Ask.LOCK_BATCH_MQ, {}, locking("b", queue()), shows_body=True),
    Probe("all unlocked", Ask.UNLOCK_BATCH_MQ, {}, locking("b", queue(), queue(queue_id=1))),
    Probe("a lock of nothing", Ask.LOCK_BATCH_MQ, {}, locking("a"), shows_body=True),
    Probe("a lock without a body", Ask.LOCK_BATCH_MQ, is_bug_there=True),
]
