"""Sends: one message, a batch, a retry."""

from tests.broker_core.probes.asking import (
    BATCH,
    BIG,
    DELAYED,
    LONG,
    ONE,
    QUEUES,
    SEND_RESULT,
    TAGGED,
    TOPIC,
    Probe,
    sending,
)

from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode as Ask

SENDS = [
    Probe("a send", Ask.SEND_MESSAGE_V2, sending(properties=TAGGED), b"hello", SEND_RESULT),
    Probe("a second send", Ask.SEND_MESSAGE_V2, sending(), b"again", SEND_RESULT),
    Probe("a send to a new topic", Ask.SEND_MESSAGE_V2, sending(topic="fresh"), b"x", SEND_RESULT),
    Probe(
        "a send without a template",
        Ask.SEND_MESSAGE_V2,
        sending(topic="t1", default_topic="no"),
        b"x",
    ),
    Probe(
        "a send by a bad template",
        Ask.SEND_MESSAGE_V2,
        sending(topic="t2", default_topic=TOPIC),
        b"x",
    ),
    Probe("a send to a blank topic", Ask.SEND_MESSAGE_V2, sending(topic=""), b"x"),
    Probe("a send to an illegal topic", Ask.SEND_MESSAGE_V2, sending(topic="a b"), b"x"),
    Probe("a send to a long topic", Ask.SEND_MESSAGE_V2, sending(topic=LONG), b"x"),
    Probe("a send to a longer topic", Ask.SEND_MESSAGE_V2, sending(topic=LONG * 3), b"x"),
    Probe(
        "a send to a forbidden topic",
        Ask.SEND_MESSAGE_V2,
        sending(topic="SCHEDULE_TOPIC_XXXX"),
        b"x",
    ),
    Probe("a send to the self test", Ask.SEND_MESSAGE_V2, sending(topic="SELF_TEST_TOPIC"), b"x"),
    Probe("a send to queue 4 of 4", Ask.SEND_MESSAGE_V2, sending(topic="fresh", queue_id=4), b"x"),
    Probe("a send to a queue out of range", Ask.SEND_MESSAGE_V2, sending(queue_id=QUEUES), b"x"),
    Probe("a send to a huge queue", Ask.SEND_MESSAGE_V2, sending(queue_id=2**31 - 1), b"x"),
    Probe("a message that is too long", Ask.SEND_MESSAGE_V2, sending(), b"x" * (4 << 20 | 1)),
    Probe(
        "a message as long as allowed", Ask.SEND_MESSAGE_V2, sending(queue_id=1), b"x" * (4 << 20)
    ),
    Probe("properties that are too long", Ask.SEND_MESSAGE_V2, sending(properties=BIG), b"x"),
    Probe(
        "a delayed message",
        Ask.SEND_MESSAGE_V2,
        sending(properties=DELAYED),
        b"late",
        SEND_RESULT[:1],
    ),
    Probe(
        "a level too high",
        Ask.SEND_MESSAGE_V2,
        sending(properties="DELAY\x0199\x02"),
        b"late",
        SEND_RESULT[:1],
    ),
    Probe(
        "a level that is no number",
        Ask.SEND_MESSAGE_V2,
        sending(properties="DELAY\x01x\x02"),
        b"l",
        is_bug_there=True,
    ),
    Probe("a batch", Ask.SEND_BATCH_MESSAGE, sending(batch="true"), BATCH, SEND_RESULT),
    Probe(
        "a batch to a retry topic",
        Ask.SEND_BATCH_MESSAGE,
        sending(batch="true", topic="%RETRY%g"),
        BATCH,
    ),
    Probe(
        "a batch of nothing", Ask.SEND_BATCH_MESSAGE, sending(batch="true"), b"", is_bug_there=True
    ),
    Probe(
        "a batch that is cut",
        Ask.SEND_BATCH_MESSAGE,
        sending(batch="true"),
        BATCH[:-3],
        is_bug_there=True,
    ),
    Probe(
        "a batch too long",
        Ask.SEND_BATCH_MESSAGE,
        sending(batch="true"),
        encode_batch([BatchItem(0, b"x" * (3 << 20), b"")] * 2),
        differs="Apache names a Java exception, ours the limit",
    ),
    Probe(
        "a batch marked by its header",
        Ask.SEND_MESSAGE_V2,
        sending(batch="true", queue_id=1),
        BATCH,
        SEND_RESULT,
    ),
    Probe(
        "a send without a topic", Ask.SEND_MESSAGE_V2, sending(topic=None), b"x", is_bug_there=True
    ),
    Probe(
        "a send without a queue",
        Ask.SEND_MESSAGE_V2,
        sending(queue_id=None),
        b"x",
        is_bug_there=True,
    ),
    Probe("a send to queue x", Ask.SEND_MESSAGE_V2, sending(queue_id="x"), b"x", is_bug_there=True),
    Probe(
        "a send in long names",
        Ask.SEND_MESSAGE,
        {
            "producerGroup": "p",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 4,
            "queueId": 1,
            "sysFlag": 0,
            "bornTimestamp": 1,
            "flag": 0,
            "reconsumeTimes": 0,
            "unitMode": "false",
            "batch": "false",
            "properties": "",
        },
        b"old",
        SEND_RESULT,
    ),
    Probe(
        "a retry of an unknown group",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%newgroup"),
        b"x",
        SEND_RESULT,
    ),
    Probe(
        "a retry of an illegal group",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%" + "g" * 121),
        b"x",
    ),
    Probe(
        "a retry at its limit",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%newgroup", reconsume_times=3, max_reconsume_times=3),
        b"x",
        SEND_RESULT,
    ),
    Probe(
        "a retry over its limit",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%newgroup", reconsume_times=4, max_reconsume_times=3),
        b"dead",
        SEND_RESULT,
    ),
    Probe(
        "a retry over the group's limit",
        Ask.SEND_MESSAGE_V2,
        sending(topic="%RETRY%newgroup", reconsume_times=17, properties=DELAYED),
        b"dead",
        SEND_RESULT,
    ),
    Probe("how many died", Ask.GET_MAX_OFFSET, {"topic": "%DLQ%newgroup", "queueId": 0}, shows=ONE),
    Probe(
        "the topic of the dead", Ask.GET_TOPIC_CONFIG, {"topic": "%DLQ%newgroup"}, shows_body=True
    ),
]
