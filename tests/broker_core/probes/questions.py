"""Every request that names a topic, a queue or a group, as a function of these."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from tests.broker_core.probes.asking import (
    BATCH,
    body_of,
    locking,
    pulling,
    queue,
    sending,
    subscription,
)

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.properties import encode_properties

FOREVER = 2**62
NO_OFFSET = 2**40


class Place(NamedTuple):
    """Where a request asks."""

    topic: str
    queue_id: int
    group: str

    @property
    def queue(self) -> dict[str, object]:
        return {"topic": self.topic, "queueId": self.queue_id}

    @property
    def read(self) -> dict[str, object]:
        return {**self.queue, "consumerGroup": self.group}

    @property
    def rule(self) -> dict[str, object]:
        return {"topic": self.topic, "group": self.group}


Header = Mapping[str, object]


class Question(NamedTuple):
    """A request whose answer depends on the place.

    Args:
        code: of the request.
        names: what it names of a place: "topic", "queue", "group".
        header: gives its header for a place.
        body: gives its body for a place.
        detail: tells it from other questions with this code.
        is_committed: whether the group has committed an offset before.
    """

    code: Ask
    names: str
    header: Callable[[Place], Header]
    body: Callable[[Place], bytes] = lambda _: b""
    detail: str = ""
    is_committed: bool = False


def _each(code: Ask, names: str, base: Callable[[Place], Header], *more: Header) -> list[Question]:
    """Return the question with each of some additions to its header."""
    return [
        Question(code, names, partial(_with, base, added), detail=_detail(added))
        for added in more or ({},)
    ]


def _with(base: Callable[[Place], Header], added: Header, place: Place) -> Header:
    return {**base(place), **added}


def _detail(more: Header) -> str:
    return " ".join(f"{name} {value}" for name, value in more.items())


def _spelled(code: Ask, names: str, body: Callable[[Place], bytes]) -> Question:
    return Question(code, names, lambda _: {}, body)


def _committed(*questions: Question) -> list[Question]:
    return [
        question._replace(is_committed=is_committed)
        for question in questions
        for is_committed in (False, True)
    ]


def _sent(place: Place, **changes: object) -> Header:
    return sending(topic=place.topic, queue_id=place.queue_id, group=place.group, **changes)


def _sent_in_long_names(place: Place) -> Header:
    return {
        **place.queue,
        "producerGroup": place.group,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "sysFlag": 0,
        "bornTimestamp": 1,
        "flag": 0,
        "reconsumeTimes": 0,
        "unitMode": "false",
        "batch": "false",
        "properties": "",
    }


def _carrying(**properties: object) -> str:
    texts = {name: str(value) for name, value in properties.items()}
    return encode_properties({"UNIQ_KEY": "E" * 32, **texts}).decode()


def _send(code: Ask, detail: str, header: Callable[[Place], Header], body: bytes) -> Question:
    return Question(code, "topic queue group", header, lambda _: body, detail)


_TIMES = [
    {"timestamp": time, "boundaryType": boundary}
    for time in (-1, 0, FOREVER)
    for boundary in ("lower", "upper")
]
_TARGETS: list[Header] = [
    *({"timestamp": time} for time in (0, -1, FOREVER)),
    *({"timestamp": 0, "offset": offset} for offset in (0, 1, 2, -2)),
]
_PULLS = [{"queueOffset": offset} for offset in (-1, 0, 1, 9)]

QUEUE_QUESTIONS = [
    *_each(Ask.GET_MAX_OFFSET, "topic queue", lambda at: at.queue),
    *_each(Ask.GET_MIN_OFFSET, "topic queue", lambda at: at.queue),
    *_each(Ask.GET_EARLIEST_MSG_STORETIME, "topic queue", lambda at: at.queue),
    *_each(Ask.SEARCH_OFFSET_BY_TIMESTAMP, "topic queue", lambda at: at.queue, *_TIMES),
    *_each(
        Ask.QUERY_CONSUME_QUEUE,
        "topic queue group",
        lambda at: {**at.read, "count": 1},
        *({"index": index} for index in (-1, 0, 1, 9)),
    ),
    *_committed(
        *_each(
            Ask.QUERY_CONSUMER_OFFSET,
            "topic queue group",
            lambda at: at.read,
            *({"setZeroIfNotFound": text} for text in (None, "false", "true")),
        )
    ),
    *_each(
        Ask.UPDATE_CONSUMER_OFFSET,
        "topic queue group",
        lambda at: at.read,
        *({"commitOffset": offset} for offset in (-1, 0, 1, NO_OFFSET)),
    ),
    *_each(
        Ask.INVOKE_BROKER_TO_RESET_OFFSET,
        "topic queue group",
        lambda at: {**at.rule, "queueId": at.queue_id, "isForce": "true"},
        *_TARGETS,
    ),
    *(
        question
        for code in (Ask.PULL_MESSAGE, Ask.LITE_PULL_MESSAGE)
        for question in _each(
            code,
            "topic queue group",
            lambda at: pulling(topic=at.topic, queueId=at.queue_id, consumerGroup=at.group),
            *_PULLS,
        )
    ),
    *(
        _spelled(
            code,
            "topic queue group",
            lambda at: locking("c", queue(at.topic, at.queue_id), group=at.group),
        )
        for code in (Ask.LOCK_BATCH_MQ, Ask.UNLOCK_BATCH_MQ)
    ),
]

SENDS = [
    _send(Ask.SEND_MESSAGE, "", _sent_in_long_names, b"m"),
    _send(Ask.SEND_MESSAGE_V2, "", _sent, b"m"),
    _send(Ask.SEND_BATCH_MESSAGE, "", lambda at: _sent(at, batch="true"), BATCH),
    _send(
        Ask.SEND_MESSAGE_V2, "delayed", lambda at: _sent(at, properties=_carrying(DELAY=18)), b"m"
    ),
    _send(
        Ask.SEND_MESSAGE_V2,
        "timed",
        lambda at: _sent(at, properties=_carrying(TIMER_DELAY_SEC=3_600)),
        b"m",
    ),
    _send(
        Ask.SEND_MESSAGE_V2,
        "half",
        lambda at: _sent(at, sys_flag=4, properties=_carrying(TRAN_MSG="true", PGROUP="halves")),
        b"m",
    ),
    _send(
        Ask.SEND_MESSAGE_V2,
        "retried",
        lambda at: sending(topic=f"%RETRY%{at.group}", queue_id=at.queue_id),
        b"m",
    ),
    _send(Ask.SEND_REPLY_MESSAGE, "", _sent_in_long_names, b"m"),
    _send(Ask.SEND_REPLY_MESSAGE_V2, "", _sent, b"m"),
    _send(
        Ask.SEND_REPLY_MESSAGE_V2,
        "to nobody",
        lambda at: _sent(at, properties=_carrying(REPLY_TO_CLIENT="x", CORRELATION_ID=1)),
        b"m",
    ),
]

TOPIC_QUESTIONS = [
    *_each(Ask.RECALL_MESSAGE, "topic", lambda at: {"topic": at.topic}, {}, {"recallHandle": "x"}),
    *_each(Ask.GET_TOPIC_CONFIG, "topic", lambda at: {"topic": at.topic}),
    *_each(Ask.GET_TOPIC_STATS_INFO, "topic", lambda at: {"topic": at.topic}),
    *_each(
        Ask.QUERY_MESSAGE,
        "topic",
        lambda at: {
            "topic": at.topic,
            "key": "A" * 32,
            "maxNum": 1,
            "beginTimestamp": 0,
            "endTimestamp": FOREVER,
        },
        {},
        {"maxNum": -1},
        {"beginTimestamp": -1},
        {"key": ""},
        {"indexType": "K"},
        {"_UNIQUE_KEY_QUERY": "true"},
    ),
    *_each(
        Ask.RESUME_CHECK_HALF_MESSAGE,
        "topic",
        lambda at: {"topic": at.topic},
        {"msgId": ""},
        {"msgId": "0" * 16 + "7" * 16},
    ),
    *_committed(*_each(Ask.QUERY_TOPIC_CONSUME_BY_WHO, "topic", lambda at: {"topic": at.topic})),
]

GROUP_QUESTIONS = [
    *_committed(
        *_each(Ask.QUERY_CONSUME_TIME_SPAN, "topic group", lambda at: at.rule),
        *_each(
            Ask.GET_CONSUME_STATS,
            "topic group",
            lambda at: {"consumerGroup": at.group, "topic": at.topic},
        ),
        *_each(
            Ask.GET_CONSUME_STATS,
            "topic group",
            lambda at: {"consumerGroup": at.group, "topicList": f"{at.topic};x"},
        ),
        *_each(Ask.GET_CONSUME_STATS, "group", lambda at: {"consumerGroup": at.group}),
        *_each(
            Ask.CLONE_GROUP_OFFSET,
            "topic group",
            lambda at: {
                "srcGroup": at.group,
                "destGroup": "heir",
                "topic": at.topic,
                "offline": "true",
            },
        ),
        *_each(
            Ask.QUERY_CORRECTION_OFFSET,
            "topic group",
            lambda at: {"topic": at.topic, "compareGroup": at.group},
            {},
            {"filterGroups": "nobody"},
        ),
        *_each(Ask.QUERY_TOPICS_BY_CONSUMER, "group", lambda at: {"group": at.group}),
    ),
    *_each(Ask.QUERY_SUBSCRIPTION_BY_CONSUMER, "topic group", lambda at: at.rule),
    *_each(
        Ask.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        "topic group",
        lambda at: at.rule,
        {},
        {"clientAddr": "x"},
    ),
    *_each(
        Ask.UPDATE_AND_GET_GROUP_FORBIDDEN,
        "topic group",
        lambda at: at.rule,
        {},
        {"readable": "false"},
        {"readable": "true"},
    ),
    _spelled(
        Ask.SET_MESSAGE_REQUEST_MODE,
        "topic group",
        lambda at: body_of(
            {"topic": at.topic, "consumerGroup": at.group, "mode": "PULL", "popShareQueueNum": 0}
        ),
    ),
    _spelled(
        Ask.CHECK_CLIENT_CONFIG,
        "topic group",
        lambda at: body_of(
            {"clientId": "c", "group": at.group, "subscriptionData": subscription(at.topic)}
        ),
    ),
    *_each(Ask.GET_CONSUMER_LIST_BY_GROUP, "group", lambda at: {"consumerGroup": at.group}),
    *_each(Ask.GET_CONSUMER_CONNECTION_LIST, "group", lambda at: {"consumerGroup": at.group}),
    *_each(Ask.GET_PRODUCER_CONNECTION_LIST, "group", lambda at: {"producerGroup": at.group}),
    *_each(Ask.GET_SUBSCRIPTIONGROUP_CONFIG, "group", lambda at: {"group": at.group}),
    *_each(
        Ask.GET_CONSUMER_RUNNING_INFO,
        "group",
        lambda at: {"consumerGroup": at.group, "clientId": "x", "jstackEnable": "false"},
    ),
    *_each(
        Ask.CONSUME_MESSAGE_DIRECTLY,
        "group",
        lambda at: {"consumerGroup": at.group, "clientId": "x"},
        {"msgId": "0" * 32},
        {"brokerName": "b"},
    ),
    *_each(
        Ask.CONSUMER_SEND_MSG_BACK,
        "group",
        lambda at: {"group": at.group, "delayLevel": 18},
        *({"offset": offset} for offset in (-1, 1, NO_OFFSET)),
    ),
    *_each(  # 0, "I do not know", has no answer
        Ask.END_TRANSACTION,
        "group",
        lambda at: {
            "producerGroup": at.group,
            "tranStateTableOffset": 0,
            "msgId": "x",
            "fromTransactionCheck": "false",
        },
        *(
            {"commitLogOffset": offset, "commitOrRollback": end}
            for offset in (-1, 1, NO_OFFSET)
            for end in (4, 8, 12, 99)
        ),
    ),
    *_each(
        Ask.UNREGISTER_CLIENT,
        "group",
        lambda at: {"clientID": "x", "consumerGroup": at.group, "producerGroup": at.group},
    ),
    *_each(
        Ask.DELETE_SUBSCRIPTIONGROUP,
        "group",
        lambda at: {"groupName": at.group},
        {},
        {"cleanOffset": "true"},
    ),
]

NAMELESS = [
    *_each(
        Ask.VIEW_MESSAGE_BY_ID,
        "",
        lambda _: {},
        *({"offset": offset} for offset in (-1, NO_OFFSET, 2**63 - 1)),
    ),
    *_each(Ask.RESET_MASTER_FLUSH_OFFSET, "", lambda _: {}, {}, {"masterFlushOffset": 0}),
    *_each(Ask.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, "", lambda _: {}),
    *_each(Ask.GET_BROKER_HA_STATUS, "", lambda _: {}),
    *_each(Ask.GET_ALL_MESSAGE_REQUEST_MODE, "", lambda _: {}),
]
