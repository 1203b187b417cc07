"""What tools ask: tables, connections, progress, settings; and headers that lack what they need."""

from tests.broker_core.probes.asking import (
    CLIENT,
    GROUP,
    LONG,
    TOPIC,
    Probe,
    body_of,
    topic,
)

from reliable_mq.wire.codes import RequestCode as Ask

_NOTICE = "a notice only says that the slave shall look: what else it says is not read"

ASKED = [
    Probe(
        "a role without a controller",
        Ask.NOTIFY_BROKER_ROLE_CHANGED,
        {
            "masterBrokerId": 1,
            "masterAddress": "127.0.0.1:1",
            "masterEpoch": 1,
            "syncStateSetEpoch": 1,
        },
        body_of({"syncStateSet": [1], "syncStateSetEpoch": 1}),
    ),
    Probe(
        "another first broker of this name",
        Ask.NOTIFY_MIN_BROKER_ID_CHANGE,
        {"minBrokerId": 1, "brokerName": "apache", "minBrokerAddr": "127.0.0.1:1"},
    ),
    Probe(
        "a first broker of another name",
        Ask.NOTIFY_MIN_BROKER_ID_CHANGE,
        {
            "minBrokerId": 2,
            "brokerName": "another",
            "minBrokerAddr": "127.0.0.1:1",
            "offlineBrokerAddr": "127.0.0.1:2",
            "haBrokerAddr": "127.0.0.1:3",
        },
        b"no notice has a body",
    ),
    Probe(
        "a notice without an id",
        Ask.NOTIFY_MIN_BROKER_ID_CHANGE,
        differs=_NOTICE,
    ),
    Probe(
        "a notice whose id is no number",
        Ask.NOTIFY_MIN_BROKER_ID_CHANGE,
        {"minBrokerId": "first", "minBrokerAddr": "nowhere"},
        differs=_NOTICE,
    ),
    Probe("producers of nobody", Ask.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nobody"}),
    Probe("a group that nobody made", Ask.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "none"}),
    Probe("who consumes", Ask.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "fresh"}, shows_body=True),
    Probe(
        "who consumes nothing",
        Ask.QUERY_TOPIC_CONSUME_BY_WHO,
        {"topic": "nowhere"},
        shows_body=True,
    ),
    Probe("topics of nobody", Ask.QUERY_TOPICS_BY_CONSUMER, {"group": "nobody"}, shows_body=True),
    Probe(
        "a subscription of nobody",
        Ask.QUERY_SUBSCRIPTION_BY_CONSUMER,
        {"group": "nobody", "topic": TOPIC},
        shows_body=True,
    ),
    Probe(
        "a subscription",
        Ask.QUERY_SUBSCRIPTION_BY_CONSUMER,
        {"group": GROUP, "topic": TOPIC},
        shows_body=True,
    ),
    Probe("times of no topic", Ask.QUERY_CONSUME_TIME_SPAN, {"topic": "nowhere", "group": GROUP}),
    Probe(
        "times of an empty topic",
        Ask.QUERY_CONSUME_TIME_SPAN,
        {"topic": "fresh", "group": "nobody"},
    ),
    Probe(
        "entries of no queue",
        Ask.QUERY_CONSUME_QUEUE,
        {"topic": "nowhere", "queueId": 3, "index": 0, "count": 1},
    ),
    Probe(
        "entries",
        Ask.QUERY_CONSUME_QUEUE,
        {"topic": TOPIC, "queueId": 0, "index": 0, "count": 2},
    ),
    Probe(
        "entries beyond the end",
        Ask.QUERY_CONSUME_QUEUE,
        {"topic": TOPIC, "queueId": 0, "index": 9_999, "count": 2},
    ),
    Probe(
        "entries of queue x",
        Ask.QUERY_CONSUME_QUEUE,
        {"topic": TOPIC, "queueId": "x", "index": 0, "count": 1},
        differs="Apache takes a number that does not read for 0, ours refuses it",
    ),
    Probe(
        "entries for nobody",
        Ask.QUERY_CONSUME_QUEUE,
        {"topic": TOPIC, "queueId": 0, "index": 0, "count": 1, "consumerGroup": "nobody"},
    ),
    Probe(
        "the insides of nobody",
        Ask.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": "nobody", "clientId": CLIENT, "jstackEnable": "false"},
    ),
    Probe(
        "a message for nobody",
        Ask.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": "nobody", "clientId": CLIENT, "msgId": "0" * 31 + "0"},
    ),
    Probe(
        "a group list with a fault",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {},
        body_of({"groupConfigList": [{"groupName": "listed"}, {"groupName": "a b"}]}),
    ),
    Probe(
        "none of it was taken",
        Ask.GET_SUBSCRIPTIONGROUP_CONFIG,
        {"group": "listed"},
        differs="Apache makes a group by asking for it",
    ),
    Probe(
        "a group list",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {},
        body_of({"groupConfigList": [{"groupName": "listed", "retryMaxTimes": 2}]}),
    ),
    Probe(
        "all of it was taken",
        Ask.GET_SUBSCRIPTIONGROUP_CONFIG,
        {"group": "listed"},
        shows_body=True,
    ),
    Probe(
        "a topic list with a fault",
        Ask.UPDATE_AND_CREATE_TOPIC_LIST,
        {},
        body_of({"topicConfigList": [{"topicName": "listed"}, {"topicName": "a b"}]}),
    ),
    Probe("no topic of it was taken", Ask.GET_TOPIC_CONFIG, {"topic": "listed"}),
    Probe(
        "a topic list",
        Ask.UPDATE_AND_CREATE_TOPIC_LIST,
        {},
        body_of({"topicConfigList": [{"topicName": "listed", "readQueueNums": 3, "perm": 6}]}),
    ),
    Probe("a group is deleted", Ask.DELETE_SUBSCRIPTIONGROUP, {"groupName": "listed"}),
    Probe(
        "the group is gone",
        Ask.GET_SUBSCRIPTIONGROUP_CONFIG,
        {"group": "listed"},
        differs="Apache makes a group by asking for it",
    ),
    Probe("no group is deleted", Ask.DELETE_SUBSCRIPTIONGROUP, {"groupName": "nobody9"}),
    Probe("a setting", Ask.UPDATE_BROKER_CONFIG, {}, b"longPollingEnable=true"),
    Probe("no setting", Ask.UPDATE_BROKER_CONFIG),
    Probe("a setting of nothing", Ask.UPDATE_BROKER_CONFIG, {}, b"noSuchThing=1"),
    Probe("a forbidden setting", Ask.UPDATE_BROKER_CONFIG, {}, b"configBlackList=x"),
    Probe("the master's slaves", Ask.GET_BROKER_HA_STATUS),
    Probe("where slaves find the master", Ask.EXCHANGE_BROKER_HA_INFO),
    Probe("epochs without a controller", Ask.GET_BROKER_EPOCH_CACHE),
]

_MISSING: dict[Ask, list[dict[str, object]]] = {
    Ask.GET_MAX_OFFSET: [{}, {"topic": TOPIC}, {"queueId": 0}, {"topic": TOPIC, "queueId": "x"}],
    Ask.GET_MIN_OFFSET: [{}, {"topic": TOPIC}, {"topic": TOPIC, "queueId": "x"}],
    Ask.GET_EARLIEST_MSG_STORETIME: [{}, {"topic": TOPIC, "queueId": "9" * 12}],
    Ask.SEARCH_OFFSET_BY_TIMESTAMP: [
        {},
        {"topic": TOPIC, "queueId": 0},
        {"topic": TOPIC, "queueId": 0, "timestamp": "soon"},
    ],
    Ask.QUERY_CONSUMER_OFFSET: [{}, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "x"}],
    Ask.UPDATE_CONSUMER_OFFSET: [
        {},
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "x", "commitOffset": 1},
    ],
    Ask.PULL_MESSAGE: [{}, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}],
    Ask.SEND_MESSAGE_V2: [{}, {"a": "p", "b": TOPIC}],
    Ask.SEND_MESSAGE: [{}, {"producerGroup": "p", "topic": TOPIC}],
    Ask.CONSUMER_SEND_MSG_BACK: [{}, {"offset": "x", "group": GROUP, "delayLevel": 0}],
    Ask.VIEW_MESSAGE_BY_ID: [{}, {"offset": "x"}, {"offset": 2**62}],
    Ask.UPDATE_AND_CREATE_TOPIC: [{}, topic("m9", readQueueNums=None), topic("m9", order="maybe")],
    Ask.QUERY_CONSUME_QUEUE: [{}],
    Ask.GET_BROKER_CONSUME_STATS: [{}],
    Ask.DELETE_SUBSCRIPTIONGROUP: [{}],
    Ask.GET_CONSUMER_RUNNING_INFO: [{}],
    Ask.CONSUME_MESSAGE_DIRECTLY: [{}, {"consumerGroup": GROUP, "msgId": "x"}],
    Ask.UNREGISTER_CLIENT: [{}],
    Ask.RESUME_CHECK_HALF_MESSAGE: [{}],
}

MISSING = [
    Probe(f"{code.name} with {header or 'nothing'}"[:90], code, header, is_bug_there=True)
    for code, headers in _MISSING.items()
    for header in headers
]

# Codes whose body is required: none, what is no JSON, and JSON of another shape.
BODIES = [
    Probe(f"{code.name} with a body of {body!r}", code, {}, body, is_bug_there=True)
    for code in (
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Ask.UPDATE_AND_CREATE_TOPIC_LIST,
        Ask.HEART_BEAT,
        Ask.LOCK_BATCH_MQ,
        Ask.UNLOCK_BATCH_MQ,
        Ask.CHECK_CLIENT_CONFIG,
    )
    for body in (b"", b"{", b"[1]", b'"text"')
]

# Tables as a whole: each broker's are its own, both give them.
TABLES = [
    Probe(f"the table of {code.name}", code)
    for code in (
        Ask.GET_ALL_TOPIC_CONFIG,
        Ask.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Ask.GET_ALL_CONSUMER_OFFSET,
        Ask.GET_ALL_DELAY_OFFSET,
        Ask.GET_TIMER_CHECK_POINT,
        Ask.GET_TIMER_METRICS,
        Ask.GET_ALL_PRODUCER_INFO,
        Ask.GET_BROKER_CONFIG,
        Ask.GET_BROKER_RUNTIME_INFO,
    )
]

LIMITS = [
    Probe(f"a {what} {name!r}"[:60], code, {field: name})
    for what, code, field in (
        ("route to config of", Ask.GET_TOPIC_CONFIG, "topic"),
        ("count of", Ask.GET_TOPIC_STATS_INFO, "topic"),
        ("deletion of", Ask.DELETE_TOPIC_IN_BROKER, "topic"),
        ("member list of", Ask.GET_CONSUMER_LIST_BY_GROUP, "consumerGroup"),
    )
    for name in ("", " ", "a b", LONG)
]

ADMIN = [*ASKED, *MISSING, *BODIES, *TABLES, *LIMITS]
