"""Consumption by the message: what is popped, shown, acknowledged and refused."""

from tests.broker_core.probes.asking import (
    CLIENT,
    GROUP,
    NO_READ,
    SEND_RESULT,
    Probe,
    body_of,
    heartbeat,
    sending,
    topic,
)

from reliable_mq.wire.codes import RequestCode as Ask

POPPED = "popped"
POP_RESULT = ("invisibleTime", "restNum", "startOffsetInfo", "msgOffsetInfo")
HANDLE = "0 1700000000000 60000 1 0 b 0 0"


def popping(**changes: object) -> dict[str, object]:
    return {
        "consumerGroup": GROUP,
        "topic": POPPED,
        "queueId": 0,
        "maxMsgNums": 32,
        "invisibleTime": 600_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
        **changes,
    }


def acking(**changes: object) -> dict[str, object]:
    return {
        "consumerGroup": GROUP,
        "topic": POPPED,
        "queueId": 0,
        "extraInfo": HANDLE,
        "offset": 0,
        **changes,
    }


def batch(**changes: object) -> bytes:
    ack = {"c": GROUP, "t": POPPED, "r": "0", "so": 0, "q": 0, "rq": 1, "pt": 1, "it": 1}
    return body_of({"acks": [{**ack, "b": "AQ==", **changes}], "brokerName": "b"})


def assigning(**changes: object) -> bytes:
    asked = {"topic": POPPED, "consumerGroup": "poppers", "clientId": CLIENT}
    return body_of({**asked, "strategyName": "AVG", "messageModel": "CLUSTERING", **changes})


def refused(name: str, code: int, ext: dict[str, object], *, is_bug_there: bool = False) -> Probe:
    return Probe(name, code, ext, is_bug_there=is_bug_there)


_NO_TOPIC, _NO_QUEUE = {"topic": "nowhere"}, {"queueId": 7}
_MODE = {"topic": POPPED, "consumerGroup": "poppers", "mode": "POP", "popShareQueueNum": 0}

POPS = [
    Probe("a topic to pop", Ask.UPDATE_AND_CREATE_TOPIC, topic(POPPED, readQueueNums=1)),
    Probe("a pop of nothing", Ask.POP_MESSAGE, popping(), shows=POP_RESULT),
    Probe("a peek at nothing", Ask.PEEK_MESSAGE, popping(), shows=("restNum",)),
    Probe("no message to wait for", Ask.NOTIFICATION, popping(), shows=("hasMsg", "pollingFull")),
    Probe("a message to pop", Ask.SEND_MESSAGE_V2, sending(topic=POPPED), b"1", SEND_RESULT),
    Probe("another one to pop", Ask.SEND_MESSAGE_V2, sending(topic=POPPED), b"2", SEND_RESULT),
    Probe("a peek", Ask.PEEK_MESSAGE, popping(), shows=("restNum",), lags=True),
    Probe("a message to wait for", Ask.NOTIFICATION, popping(), shows=("hasMsg",), lags=True),
    Probe("a pop of one", Ask.POP_MESSAGE, popping(maxMsgNums=1), shows=POP_RESULT),
    Probe("a pop of the rest", Ask.POP_MESSAGE, popping(queueId=-1), shows=POP_RESULT),
    Probe("a pop of no rest", Ask.POP_MESSAGE, popping(), shows=POP_RESULT),
    Probe("who waits", Ask.POLLING_INFO, popping(), shows=("pollingNum",)),
    refused("a pop of too many", Ask.POP_MESSAGE, popping(maxMsgNums=33)),
    refused("a pop that is too late", Ask.POP_MESSAGE, popping(bornTime=1)),
    refused(
        "a pop without a group", Ask.POP_MESSAGE, popping(consumerGroup=None), is_bug_there=True
    ),
    refused("a pop of odd tags", Ask.POP_MESSAGE, popping(exp="||")),
    refused("a late acknowledgement", Ask.ACK_MESSAGE, acking()),
    refused("an ack of no message", Ask.ACK_MESSAGE, acking(offset=99)),
    refused("an ack before all", Ask.ACK_MESSAGE, acking(offset=-1)),
    refused("an ack without a handle", Ask.ACK_MESSAGE, acking(extraInfo=None), is_bug_there=True),
    refused("an ack with a bad handle", Ask.ACK_MESSAGE, acking(extraInfo="x"), is_bug_there=True),
    Probe("a batch without acks", Ask.BATCH_ACK_MESSAGE, {}, b"{}", is_bug_there=True),
    Probe("a batch of the past", Ask.BATCH_ACK_MESSAGE, {}, batch()),
    Probe("a batch of nowhere", Ask.BATCH_ACK_MESSAGE, {}, batch(t="nowhere")),
    refused(
        "no message to extend",
        Ask.CHANGE_MESSAGE_INVISIBLETIME,
        acking(offset=99, invisibleTime=1_000),
        is_bug_there=True,
    ),
    *(
        refused(f"{name} with {what}", code, {**popping(), **acking(), **changes})
        for what, changes in (("no topic", _NO_TOPIC), ("no queue", _NO_QUEUE))
        for name, code in (
            ("a pop", Ask.POP_MESSAGE),
            ("a peek", Ask.PEEK_MESSAGE),
            ("an ack", Ask.ACK_MESSAGE),
            ("an extension", Ask.CHANGE_MESSAGE_INVISIBLETIME),
            ("a notification", Ask.NOTIFICATION),
            ("polling information", Ask.POLLING_INFO),
        )
    ),
    *(
        refused(f"{name} that may not read", code, popping(topic=NO_READ))
        for name, code in (("a pop", Ask.POP_MESSAGE), ("a peek", Ask.PEEK_MESSAGE))
    ),
    Probe(
        "a member that pops",
        Ask.HEART_BEAT,
        {},
        body_of(heartbeat(POPPED, group="poppers")),
    ),
    Probe("queues to pull", Ask.QUERY_ASSIGNMENT, {}, assigning(), shows_all=True, lags=True),
    Probe("a mode to pop", Ask.SET_MESSAGE_REQUEST_MODE, {}, body_of(_MODE)),
    Probe("queues to pop", Ask.QUERY_ASSIGNMENT, {}, assigning(), shows_all=True, lags=True),
    Probe("queues of nowhere", Ask.QUERY_ASSIGNMENT, {}, assigning(topic="nowhere")),
]
