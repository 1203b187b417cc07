"""Codes that nobody serves, and topics made and asked for."""

from tests.broker_core.probes.asking import LONG, NO_READ, TOPIC, Probe, topic

from reliable_mq.wire.codes import RequestCode as Ask

UNKNOWN = [
    Probe("an unknown request code", 9_999),
    Probe("a negative request code", -1),
    Probe("a request code of the name server", Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}),
]


TOPICS = [
    Probe("a topic is created", Ask.UPDATE_AND_CREATE_TOPIC, topic(TOPIC)),
    Probe("a topic without read permission", Ask.UPDATE_AND_CREATE_TOPIC, topic(NO_READ, perm=2)),
    Probe("a topic is created as it is", Ask.UPDATE_AND_CREATE_TOPIC, topic(TOPIC)),
    Probe("a topic with a blank name", Ask.UPDATE_AND_CREATE_TOPIC, topic(" ")),
    Probe("a topic with illegal letters", Ask.UPDATE_AND_CREATE_TOPIC, topic("a topic?")),
    Probe("a topic with a long name", Ask.UPDATE_AND_CREATE_TOPIC, topic(LONG)),
    Probe("a long retry topic", Ask.UPDATE_AND_CREATE_TOPIC, topic("%RETRY%" + "x" * 255)),
    Probe("a system topic", Ask.UPDATE_AND_CREATE_TOPIC, topic("SELF_TEST_TOPIC")),
    Probe("a system topic by prefix", Ask.UPDATE_AND_CREATE_TOPIC, topic("rmq_sys_x")),
    Probe("the cluster's topic", Ask.UPDATE_AND_CREATE_TOPIC, topic("DefaultCluster")),
    Probe(
        "a mixed topic", Ask.UPDATE_AND_CREATE_TOPIC, topic("m", attributes="+message.type=MIXED")
    ),
    Probe(
        "a first-in-first-out topic",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("fifo", attributes="+message.type=FIFO"),
    ),
    Probe("its settings", Ask.GET_TOPIC_CONFIG, {"topic": "fifo"}, shows_body=True),
    Probe("an unknown attribute", Ask.UPDATE_AND_CREATE_TOPIC, topic("m1", attributes="+x=1")),
    Probe(
        "an attribute without sign",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m2", attributes="message.type=FIFO"),
    ),
    Probe(
        "an attribute of no value",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m3", attributes="+message.type=ZZ"),
        differs="ours lists the values that it keeps its word on",
    ),
    Probe(
        "an attribute taken", Ask.UPDATE_AND_CREATE_TOPIC, topic("fifo", attributes="-message.type")
    ),
    Probe("its settings then", Ask.GET_TOPIC_CONFIG, {"topic": "fifo"}, shows_body=True),
    Probe(
        "a filter type of no kind",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m4", topicFilterType="ZZ"),
        differs="Apache names a Java exception",
    ),
    Probe(
        "a topic without queues",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m5", readQueueNums=0, writeQueueNums=0),
    ),
    Probe(
        "a topic of fewer than none",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m6", readQueueNums=-1),
        differs="Apache makes a topic that no client can use",
    ),
    Probe(
        "a topic of x queues",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m7", readQueueNums="x"),
        is_bug_there=True,
    ),
    Probe(
        "a topic without permissions",
        Ask.UPDATE_AND_CREATE_TOPIC,
        topic("m8", perm=None),
        is_bug_there=True,
    ),
    Probe("the settings of a topic", Ask.GET_TOPIC_CONFIG, {"topic": TOPIC}, shows_body=True),
    Probe("the settings of no topic", Ask.GET_TOPIC_CONFIG, {"topic": "nowhere"}),
    Probe(
        "the numbers of an empty topic", Ask.GET_TOPIC_STATS_INFO, {"topic": TOPIC}, shows_body=True
    ),
    Probe("the numbers of no topic", Ask.GET_TOPIC_STATS_INFO, {"topic": "nowhere"}),
]
