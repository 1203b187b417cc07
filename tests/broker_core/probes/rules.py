"""What tools lay down for groups: forbidden topics, the way to read, and what is cold."""

from tests.broker_core.probes.asking import CLIENT, GROUP, TOPIC, Probe, body_of, heartbeat, pulling

from reliable_mq.wire.codes import RequestCode as Ask

MODES = Ask.GET_ALL_MESSAGE_REQUEST_MODE
FORBID = Ask.UPDATE_AND_GET_GROUP_FORBIDDEN
THRESHOLDS = Ask.GET_COLD_DATA_FLOW_CTR_INFO
RESUME = Ask.RESUME_CHECK_HALF_MESSAGE


def mode(**changes: object) -> bytes:
    return body_of(
        {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 2, **changes}
    )


def forbidding(**changes: object) -> dict[str, object]:
    return {"group": "choosy", "topic": TOPIC, **changes}


NO_MODE = [Probe("no mode was set", MODES, shows_body=True)]
"""Asked before anybody sets one."""

RULES = [
    Probe("a mode is set", Ask.SET_MESSAGE_REQUEST_MODE, {}, mode()),
    Probe("the mode that was set", MODES, shows_all=True),
    Probe(
        "a mode for a new group",
        Ask.SET_MESSAGE_REQUEST_MODE,
        {},
        body_of({"topic": TOPIC, "consumerGroup": "modish"}),
    ),
    Probe("a mode for no topic", Ask.SET_MESSAGE_REQUEST_MODE, {}, mode(topic="nowhere")),
    Probe(
        "a mode for a retry topic", Ask.SET_MESSAGE_REQUEST_MODE, {}, mode(topic=f"%RETRY%{GROUP}")
    ),
    Probe(
        "a mode for a group with an illegal name",
        Ask.SET_MESSAGE_REQUEST_MODE,
        {},
        mode(consumerGroup="a b"),
    ),
    Probe(
        "a mode that there is not",
        Ask.SET_MESSAGE_REQUEST_MODE,
        {},
        mode(mode="PUSH"),
        differs="Apache keeps that nothing was set",
    ),
    Probe("a mode of nothing", Ask.SET_MESSAGE_REQUEST_MODE, is_bug_there=True),
    Probe("nothing is forbidden", FORBID, forbidding(), shows_body=True),
    Probe("a topic is forbidden", FORBID, forbidding(readable="false"), shows_body=True),
    Probe("it stays forbidden", FORBID, forbidding(), shows_body=True),
    Probe(
        "members of a group with a forbidden topic",
        Ask.HEART_BEAT,
        {},
        body_of(heartbeat(TOPIC, group="choosy")),
    ),
    Probe(
        "a pull of a forbidden topic",
        Ask.PULL_MESSAGE,
        pulling(consumerGroup="choosy", sysFlag=0),
        shows=("forbiddenType",),
    ),
    Probe("the topic is allowed again", FORBID, forbidding(readable="true"), shows_body=True),
    Probe("a pull of it", Ask.PULL_MESSAGE, pulling(consumerGroup="choosy", sysFlag=0)),
    Probe("they leave", Ask.UNREGISTER_CLIENT, {"clientID": CLIENT, "consumerGroup": "choosy"}),
    Probe("a forbidden topic of no group", FORBID, {"topic": TOPIC}, is_bug_there=True),
    Probe("no group is cold", THRESHOLDS, shows_body=True),
    Probe(
        "a threshold for two groups",
        Ask.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        {},
        b"probing=1024\nchoosy=many\n",
    ),
    Probe("one of them reads", THRESHOLDS, shows_body=True),
    Probe("no threshold", Ask.UPDATE_COLD_DATA_FLOW_CTR_CONFIG),
    Probe("a threshold is removed", Ask.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"probing"),
    Probe("no threshold is removed", Ask.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"nobody"),
    Probe("it is gone from the thresholds", THRESHOLDS, shows_body=True),
    Probe("the log is read at random", Ask.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "1"}),
    Probe("the log is read ahead", Ask.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "0"}),
    Probe("the log is read backwards", Ask.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "2"}),
    Probe("the log is read anyhow", Ask.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "x"}),
    Probe("the log is read", Ask.SET_COMMITLOG_READ_MODE),
    Probe("a half is resumed that is nowhere", RESUME, {"msgId": "0" * 16 + "7" * 16}),
    Probe("a half is resumed that has no id", RESUME, {"msgId": "half"}),
    Probe(
        "a half is resumed that is a message",
        RESUME,
        {"msgId": "0" * 32},
        differs="Apache stores any message as a half; ours only one that is not settled",
    ),
]
