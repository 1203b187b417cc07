"""Messages sent back, and messages looked up."""

from tests.broker_core.probes.asking import GROUP, ONE, TOPIC, Probe

from reliable_mq.wire.codes import RequestCode as Ask

SEND_BACKS = [
    Probe(
        "a failure comes again",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": GROUP, "delayLevel": 0, "maxReconsumeTimes": 16},
    ),
    Probe(
        "a failure at a level",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": GROUP, "delayLevel": 18},
    ),
    Probe(
        "a failure is given up",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": GROUP, "delayLevel": -1, "originTopic": TOPIC},
    ),
    Probe(
        "no attempt is left",
        Ask.CONSUMER_SEND_MSG_BACK,
        {
            "offset": 0,
            "group": GROUP,
            "delayLevel": 0,
            "maxReconsumeTimes": 0,
            "originTopic": TOPIC,
        },
    ),
    Probe(
        "how many died of this",
        Ask.GET_MAX_OFFSET,
        {"topic": f"%DLQ%{GROUP}", "queueId": 0},
        shows=ONE,
    ),
    Probe(
        "a failure of no message",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 2**40, "group": GROUP, "delayLevel": 0},
    ),
    Probe(
        "a failure of half a message",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 7, "group": GROUP, "delayLevel": 0},
        is_bug_there=True,
    ),
    Probe(
        "a failure of a negative offset",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": -1, "group": GROUP, "delayLevel": 0},
    ),
    Probe(
        "a failure of an illegal group",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": "a b", "delayLevel": 0},
    ),
    Probe(
        "a failure of no offset",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"group": GROUP, "delayLevel": 0},
        is_bug_there=True,
    ),
    Probe(
        "a failure without a level",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": GROUP},
        is_bug_there=True,
    ),
    Probe("a message by its offset", Ask.VIEW_MESSAGE_BY_ID, {"offset": 0}),
    Probe("no message by its offset", Ask.VIEW_MESSAGE_BY_ID, {"offset": 2**40}),
    Probe("half a message by its offset", Ask.VIEW_MESSAGE_BY_ID, {"offset": 7}, is_bug_there=True),
    Probe("a message of topic and offset", Ask.VIEW_MESSAGE_BY_ID, {"offset": 0, "topic": TOPIC}),
]
