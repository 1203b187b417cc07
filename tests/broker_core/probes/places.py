"""Every request that names a topic, a queue or a group, asked where there is little or nothing.

The places: a queue with one message, an empty queue, queues out of range, a topic and a group that
are not there. Each question has a topic and a group of its own, because Apache's broker makes
queues, groups and tables when it is asked for them.
"""

from collections.abc import Iterator

from tests.broker_core.probes.asking import TAGGED, Probe, group_config, sending, topic
from tests.broker_core.probes.questions import (
    GROUP_QUESTIONS,
    NAMELESS,
    QUEUE_QUESTIONS,
    SENDS,
    TOPIC_QUESTIONS,
    Place,
    Question,
)

from reliable_mq.wire.codes import RequestCode as Ask

QUEUES = 4
WRITTEN = 1  # the queue that has a message

_DIFFERENCES = {
    "GET_SUBSCRIPTIONGROUP_CONFIG, no group": "Apache makes a group by asking for it",
    "LOCK_BATCH_MQ, the first queue too many": "Apache locks a queue that is not there",
    "LOCK_BATCH_MQ, a queue far too many": "Apache locks a queue that is not there",
    "LOCK_BATCH_MQ, queue -1": "Apache locks a queue that is not there",
    "LOCK_BATCH_MQ, no topic": "Apache locks a queue of a topic that is not there",
}


def _places(number: int, names: str) -> Iterator[tuple[str, Place]]:
    made, group = f"made_{number}", f"group_{number}"
    yield "a queue with a message", Place(made, WRITTEN, group)
    if "queue" in names:
        yield "an empty queue", Place(made, 0, group)
        yield "the first queue too many", Place(made, QUEUES, group)
        yield "a queue far too many", Place(made, 2**31 - 1, group)
    if "topic" in names:
        yield "no topic", Place(f"nowhere_{number}", 0, group)
    if "group" in names:
        yield "no group", Place(made, WRITTEN, f"nobody_{number}")
        yield "a group of no name", Place(made, WRITTEN, "")
    if "queue" in names:
        yield "queue -1", Place(made, -1, group)  # last: a send goes to any queue


def _asked(number: int, question: Question) -> Iterator[Probe]:
    """Make what a question is about, then ask it at every place."""
    made, group = f"made_{number}", f"group_{number}"
    has = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES}
    yield Probe(f"{made} is made", Ask.UPDATE_AND_CREATE_TOPIC, topic(made, **has))
    yield Probe(
        f"{group} is made", Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_config(group)
    )
    send = sending(topic=made, queue_id=WRITTEN, properties=TAGGED)
    yield Probe(f"{made} has a message", Ask.SEND_MESSAGE_V2, send, b"m")
    at = {"topic": made, "queueId": WRITTEN}
    yield Probe(f"{made} shows its message", Ask.GET_MAX_OFFSET, at, shows=("offset",))
    if question.is_committed:
        commit = {**at, "consumerGroup": group, "commitOffset": 1}
        yield Probe(f"{group} has an offset", Ask.UPDATE_CONSUMER_OFFSET, commit)
    detail = " ".join(
        filter(None, (question.detail, "of a committed group" if question.is_committed else ""))
    )
    for where, place in _places(number, question.names):
        name = f"{question.code.name}, {where}"
        any_queue = place.queue_id < 0 and question in SENDS  # any of the topic's may be taken
        yield Probe(
            f"{name} {number} {detail}".strip(),
            question.code,
            question.header(place),
            question.body(place),
            shows_all=not any_queue,
            differs=_DIFFERENCES.get(name, ""),
        )


PLACES = [
    probe
    for number, question in enumerate(
        [*QUEUE_QUESTIONS, *SENDS, *TOPIC_QUESTIONS, *GROUP_QUESTIONS, *NAMELESS]
    )
    for probe in _asked(number, question)
]
