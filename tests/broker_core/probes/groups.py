"""Groups made by tools, and topics deleted."""

from tests.broker_core.probes.asking import (
    CLIENT,
    ONE,
    SEND_RESULT,
    TOPIC,
    Probe,
    body_of,
    group_config,
    heartbeat,
    pulling,
    sending,
)

from reliable_mq.wire.codes import RequestCode as Ask

GROUPS = [
    Probe(
        "a group is made",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("made", consumeEnable=False),
    ),
    Probe(
        "a pull of a group that may not",
        Ask.PULL_MESSAGE,
        pulling(consumerGroup="made"),
        shows=("forbiddenType",),
    ),
    Probe(
        "a group with an illegal name",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("a b"),
    ),
    Probe(
        "a group with a blank name", Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_config("")
    ),
    Probe(
        "a group with a long name",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("g" * 121),
    ),
    Probe("no group is made", Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
    Probe(
        "the settings of a made group",
        Ask.GET_SUBSCRIPTIONGROUP_CONFIG,
        {"group": "made"},
        shows_body=True,
    ),
    Probe("the settings of no group", Ask.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "a b"}),
    Probe(
        "a broadcasting group",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("cast", consumeBroadcastEnable=False),
    ),
    Probe(
        "a broadcaster's heartbeat",
        Ask.HEART_BEAT,
        {},
        body_of(heartbeat(TOPIC, group="cast", messageModel="BROADCASTING")),
    ),
    Probe(
        "a pull of a broadcaster",
        Ask.PULL_MESSAGE,
        pulling(consumerGroup="cast", sysFlag=0),
        shows=("forbiddenType",),
    ),
    Probe(
        "a group that retries nothing",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        group_config("never", retryQueueNums=0),
    ),
    Probe(
        "its failure", Ask.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "never", "delayLevel": 0}
    ),
    Probe(
        "its stats",
        Ask.GET_CONSUME_STATS,
        {"consumerGroup": "cast", "topic": "nowhere"},
        shows_body=True,
    ),
    Probe("stats of nobody", Ask.GET_CONSUME_STATS, {"consumerGroup": "nobody3"}, shows_body=True),
    Probe("a goodbye", Ask.UNREGISTER_CLIENT, {"clientID": CLIENT, "consumerGroup": "cast"}),
    Probe(
        "a goodbye of nobody",
        Ask.UNREGISTER_CLIENT,
        {"clientID": "nobody", "consumerGroup": "none", "producerGroup": "none"},
    ),
    Probe("nobody is left", Ask.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "cast"}),
]


def _put(name: str, attributes: dict[str, str] | None = None, *, is_refused: bool = False) -> Probe:
    """Return the probe that sets attributes of the group "marked", by names with their signs."""
    body = group_config("marked", attributes=attributes)
    ask = Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    return Probe(f"attributes of a group: {name}", ask, {}, body, is_bug_there=is_refused)


def _got(when: str) -> Probe:
    ask = Ask.GET_SUBSCRIPTIONGROUP_CONFIG
    return Probe(f"attributes of a group {when}", ask, {"group": "marked"}, shows_body=True)


FACTOR = "priority.factor"

GROUP_ATTRIBUTES = [
    _put("one is taken away as it is made", {f"-{FACTOR}": ""}, is_refused=True),
    _put("one without a sign as it is made", {FACTOR: "5"}, is_refused=True),
    _put("none as it is made"),
    _put("one is set", {f"+{FACTOR}": "50"}),
    _got("after one was set"),
    _put("nothing is named"),
    _got("after nothing was named"),
    _put("one is set anew", {f"+{FACTOR}": "+7"}),
    _got("after one was set anew"),
    _put("too much", {f"+{FACTOR}": "101"}, is_refused=True),
    _put("no number", {f"+{FACTOR}": "much"}, is_refused=True),
    _put("one that there is not", {"+nonsense": "1"}, is_refused=True),
    _put("one that there is not is taken away", {"-nonsense": "1"}, is_refused=True),
    _put("both at once", {f"+{FACTOR}": "1", f"-{FACTOR}": ""}, is_refused=True),
    _put("a sign and nothing", {"+": "1"}, is_refused=True),
    _got("after what was refused"),
    _put("one is taken away", {f"-{FACTOR}": ""}),
    _got("after one was taken away"),
    _put("it is taken away again", {f"-{FACTOR}": ""}, is_refused=True),
]

DELETIONS = [
    Probe("a topic is deleted", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "fresh"}),
    Probe("it is gone", Ask.GET_TOPIC_CONFIG, {"topic": "fresh"}),
    Probe(
        "its end is gone",
        Ask.GET_MAX_OFFSET,
        {"topic": "fresh", "queueId": 0},
        shows=ONE,
        differs="our queues go on counting, so that a replay can tell old from new",
    ),
    Probe(
        "it begins again",
        Ask.SEND_MESSAGE_V2,
        sending(topic="fresh"),
        b"x",
        SEND_RESULT,
        differs="our queues go on counting, so that a replay can tell old from new",
    ),
    Probe("no topic is deleted", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "nowhere"}),
    Probe("a blank topic is deleted", Ask.DELETE_TOPIC_IN_BROKER, {"topic": ""}),
    Probe(
        "a system topic is deleted", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "SCHEDULE_TOPIC_XXXX"}
    ),
]
